# SPDX-License-Identifier: GPL-2.0
"""The categories into which the benchmark divides instructions, by the function that has them.

An instruction belongs to the function whose code it is, not to the callers of that function. A
function that the compiler has inlined is a part of the function around it. So the engine's share is
that of its functions that are not inlined into the driver, and the same is true vice versa.
"""

import functools
import re

USER = "user space"
OTHER = "other"

# A row is: category, kind, names. Kind is the property with which a name is compared:
#   string    the string instruction that the instructions are: movs (copy) or stos (fill)
#   crate     the crate that defines a Rust function
#   module    the module that has the function
#   function  the function's name, without underscores at its beginning
# A name that ends with * stands for all names that begin so. The first row that matches applies.
RULES = (
    ("copy", "string", "movs"),
    ("memory", "string", "stos"),
    ("ICRC", "function", """
        crc32_* rxe_icrc_* kernel_fpu_* irq_fpu_* fpregs_* save_fpregs_* restore_fpregs_*
        switch_fpu_*"""),
    ("copy", "function", """
        memcpy* memmove* memdup_user rep_movs* copy_from_* copy_to_* copy_user_* copy_page*
        simple_copy_* csum_partial_copy_* rxe_mr_copy* copy_data"""),
    ("engine", "crate", "roce"),
    ("driver", "crate", "rrxe rdma"),
    ("locks and helpers", "crate", "kernel core"),
    ("driver", "module", "rrxe rdma_rxe"),
    ("verbs and system call", "module", "ib_uverbs ib_uverbs_support ib_core"),
    ("netdev", "module", "veth"),
    ("verbs and system call", "function", """
        entry_* do_syscall_* syscall_* x64_* exit_to_user_* sys_sendto sys_recvfrom get_user_*
        put_user_* check_object_size check_heap_object check_stack_object virt_addr_valid
        memchr_inv ksys_* vfs_* do_vfs_* fdget* fput* rw_verify_area import_* kill_fasync
        radix_tree_* idr_* srcu_* security_* apparmor_* aa_* tomoyo_* hook_* bpf_lsm_*
        common_file_perm"""),
    ("skb", "function", """
        skb_* alloc_skb* build_skb* kfree_skb* consume_skb* pskb_* copy_skb_* tcp_skb_* sk_skb_*
        kmalloc_reserve page_pool_* napi_alloc_* napi_build_* napi_consume_* napi_skb_* napi_pp_*
        sock_rfree sock_wfree sock_alloc_send_* csum_* do_csum"""),
    ("netdev", "function", """
        netif_* napi_* net_rx_* process_backlog enqueue_to_backlog backlog_* dev_gro_* gro_*
        inet_gro_* udp_gro_* udp4_gro_* tcp_gro_* tcp4_gro_* eth_* dev_forward_* dev_hard_*
        dev_nit_* validate_xmit_* passthru_* handle_softirqs do_softirq* raise_softirq* local_bh_*
        irq_exit*"""),
    ("IP and qdisc", "function", """
        ip_* ip4_* ip6_* ipv4_* ipv6_* inet_* inet6_* fib_* fib6_* rt_* rt6_* dst_* neigh_* arp_*
        nf_* raw_v4_* raw_local_* icmp_* udp_* udp4_* udp6_* udpv6_* tcp_* tcp4_* cubictcp_*
        minmax_* sk_* sock_* lock_sock* release_sock* bpf_skops_* siphash_* xfrm_* flow_* map_id_*
        make_kuid get_random_* prandom_* chacha_* dev_queue_* qdisc_* sch_* pfifo_* noqueue_*
        netdev_core_pick_*"""),
    ("scheduling", "function", """
        schedule* sched_* resched_* preempt_* pick_* put_prev_* set_next_* update_* enqueue_*
        dequeue_* try_to_wake_up ttwu_* wake_* wakeup_* default_wake_* woken_* wait_* autoremove_*
        prepare_to_* prepare_task_* finish_wait finish_task_* add_wait_* remove_wait_* init_wait_*
        switch_* native_sched_* psi_* place_* reweight_* avg_* vruntime_* min_vruntime* entity_*
        detach_* attach_* account_* acct_* cpuacct_* hrtick* requeue_* kick_* yield_* scx_*
        tg_cpus task_* migrate_* record_times rb_* dl_* native_write_* native_load_* native_apic_*
        choose_new_* cr4_* calc_* xfd_* mm_needs_* rdgsbase_* wrgsbase_* queue_work*
        process_one_work worker_* pwq_* insert_work* assign_work move_linked_* wq_* kthread_*
        clear_pending_* clear_delayed do_idle* default_idle* nohz_* ktime_* timekeeping_*
        hrtimer_* remove_hrtimer lock_hrtimer_* timerqueue_* timer_* mod_timer lock_timer_*
        run_timer_* clockevents_* tick_* sysvec_* asm_sysvec_* irqentry_* irq_* next_* error_entry
        restore_regs_* arch_* x86_call_* usecs_* perf_*"""),
    ("memory", "function", """
        kmem_cache_* kmalloc_* krealloc_* kfree kvfree* slab_* alloc_from_* free_to_* pcs_* barn_*
        refill_* build_detached_* allocate_slab build_slab_* obj_cgroup_* memcg_* mem_cgroup_*
        mod_* lruvec_* lru_* css_rstat_* propagate_* alloc_pages_* alloc_frozen_* alloc_* free_*
        get_page_* put_page* rmqueue_* policy_* zone_* get_pfnblock_* pfn_* nr_to_section
        is_vmalloc_* prep_* post_alloc_* memset* clear_page* clear_highpage* page_* folio_*
        folios_* tlb_* zap_* unmap_* pte_* vm_* vma_* mas_* xas_* xa_* handle_mm_* exc_page_*
        userfaultfd_* damon_*"""),
    ("locks and helpers", "function", """
        raw_spin_* native_queued_* raw_read_* raw_write_* queued_* mutex_* rwsem_* down_* up_*
        rcu_* call_rcu* get_state_synchronize_rcu refcount_* percpu_* find_* bitmap_* list_*
        strnlen* sized_* rust_helper_* pi___x86_indirect_thunk_* x86_indirect_thunk_*
        x86_return_thunk"""),
)

CATEGORIES = (
    "ICRC", "copy", "engine", "driver", "verbs and system call", "skb", "netdev", "IP and qdisc",
    "scheduling", "memory", "locks and helpers", USER, OTHER,
)

# The first crate in the mangled name of a Rust function is the crate of the function, or of the
# implementation that has it.
CRATE = re.compile(r"Cs[0-9A-Za-z]*_(\d+)(.*)")


def crate_of(name):
    """Returns the crate that defines a Rust function, or None for other functions."""
    match = CRATE.search(name) if name.startswith("_R") else None
    return match[2].removeprefix("_")[: int(match[1])] if match else None


def pattern(names):
    """Returns a regular expression for a list of names. A * at the end stands for any rest."""
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names.split()))


PATTERNS = [(category, kind, pattern(names)) for category, kind, names in RULES]


@functools.cache
def category_of(name, module="", string=""):
    """Returns the category of instructions of the kernel.

    They belong to the function `name` of `module`, which is "" for the kernel itself. `string`
    names the string instruction that they are, or is "".
    """
    # The compiler adds suffixes such as .constprop.0, .isra.0, .part.0 and .cold.
    plain = name.split(".")[0].lstrip("_")
    values = {"string": string, "crate": crate_of(name), "module": module, "function": plain}
    for category, kind, names in PATTERNS:
        if values[kind] and names.fullmatch(values[kind]):
            return category
    return OTHER
