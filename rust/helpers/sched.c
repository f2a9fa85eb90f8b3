// SPDX-License-Identifier: GPL-2.0
/* Helpers for Rust (see helpers.c): scheduling and signals of the current thread. */
#include <linux/freezer.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/task_work.h>
#include <linux/rcupdate.h>

/*
 * The module calls synchronize_rcu_tasks() before it is unloaded, since a task may be preempted in
 * the destructor of a packet, which is no RCU read-side critical section. Without CONFIG_TASKS_RCU
 * that call is synchronize_rcu(), which suffices only if tasks are not preempted there.
 */
#if defined(CONFIG_PREEMPTION) && !defined(CONFIG_TASKS_RCU)
#error "rrxe needs CONFIG_TASKS_RCU on kernels with CONFIG_PREEMPTION"
#endif

__rrxe_helper void rrxe_helper_cond_resched(void)
{
	cond_resched();
}

__rrxe_helper void rrxe_helper_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

/* Ends a wait that set_current_state() began. */
__rrxe_helper void rrxe_helper_set_current_running(void)
{
	__set_current_state(TASK_RUNNING);
}

__rrxe_helper bool rrxe_helper_current_task_work_pending(void)
{
	return task_work_pending(current);
}

/* Makes signal_pending() true for the current thread, so that it calls get_signal(). */
__rrxe_helper void rrxe_helper_current_notify_signal(void)
{
	set_thread_flag(TIF_NOTIFY_SIGNAL);
}

__rrxe_helper bool rrxe_helper_current_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

__rrxe_helper bool rrxe_helper_current_signal_pending(void)
{
	return signal_pending(current);
}

__rrxe_helper bool rrxe_helper_current_freezing(void)
{
	return freezing(current);
}
