// SPDX-License-Identifier: GPL-2.0

//! Short queues: the gaps of packets or responses that a requester keeps.

/// Maximum number of elements.
const MOST: usize = 8;

/// A queue of at most [`MOST`] elements, oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShortQueue<T> {
    elements: [T; MOST],
    len: usize,
}

impl<T: Copy> ShortQueue<T> {
    /// Returns the elements.
    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        self.elements.get_mut(..self.len).unwrap_or_default()
    }

    /// Returns the oldest element.
    pub(super) fn oldest(&mut self) -> Option<&mut T> {
        self.as_mut_slice().first_mut()
    }

    /// Adds an element behind the others, unless the queue is full.
    pub(super) fn push(&mut self, element: T) {
        if let Some(place) = self.elements.get_mut(self.len) {
            *place = element;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Adds an element before the others. A full queue loses its newest element.
    pub(super) fn push_front(&mut self, element: T) {
        self.elements.rotate_right(1);
        if let Some(place) = self.elements.first_mut() {
            *place = element;
        }
        self.len = self.len.saturating_add(1).min(MOST);
    }

    /// Takes the oldest element.
    pub(super) fn pop(&mut self) -> Option<T> {
        let left = self.len.checked_sub(1)?;
        let oldest = self.elements.first().copied();
        self.elements.rotate_left(1);
        self.len = left;
        oldest
    }

    /// Removes all elements.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_new_elements_and_loses_its_newest_to_older_ones() {
        let mut queue = ShortQueue::default();
        (1..=MOST + 1).for_each(|element| queue.push(element));
        assert_eq!(queue.as_mut_slice(), [1, 2, 3, 4, 5, 6, 7, 8]);
        queue.push_front(0);
        assert_eq!(queue.as_mut_slice(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(queue.pop(), Some(0));
        assert_eq!(queue.oldest(), Some(&mut 1));
        queue.clear();
        assert_eq!(queue.pop(), None);
    }
}
