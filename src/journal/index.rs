//! What the journal holds, as places in its file: the events that are not acknowledged, in order and
//! without gaps, and the keys. An event costs 24 bytes here, whatever its body's length.
use std::collections::{BTreeMap, VecDeque};

use super::format::{Content, Record, total};
use super::{Class, Kind};

/// An unacknowledged event, or what stands for dropped ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Of the last event it stands for; the first is the one after the slot before.
    pub sequence: u64,
    place: Place,
    pub holds: Holds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Event(Class),
    Dropped,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The offset, in units of 8 bytes.
    eighth: u32,
    /// Of the payload.
    pub length: u32,
}

impl Place {
    fn of(record: &Record) -> Self {
        Self {
            // A journal is far below 32 GiB.
            eighth: u32::try_from(record.offset / 8).unwrap_or(u32::MAX),
            length: record.length,
        }
    }

    pub fn offset(self) -> u64 {
        u64::from(self.eighth) * 8
    }

    fn total(self) -> u64 {
        total(self.length as usize) as u64
    }
}

impl Slot {
    pub fn place(&self) -> Place {
        self.place
    }
}

/// Events to be dropped: those from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub first: u64,
    pub last: u64,
    /// How many of them were not dropped before.
    pub anew: u64,
}

#[derive(Debug, Default)]
pub struct Index {
    /// The last sequence number given.
    pub position: u64,
    /// Events up to here are acknowledged.
    pub acked: u64,
    slots: VecDeque<Slot>,
    keys: BTreeMap<(Kind, String), Place>,
    live: u64,
    keyed: u64,
}

impl Index {
    /// Bytes of the records that are needed.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of the keyed records.
    pub fn keyed(&self) -> u64 {
        self.keyed
    }

    /// Slots of unacknowledged events.
    pub fn events(&self) -> usize {
        self.slots.len()
    }

    pub fn keys(&self) -> impl Iterator<Item = (Kind, &str, Place)> {
        self.keys
            .iter()
            .map(|((kind, key), place)| (*kind, key.as_str(), *place))
    }

    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    pub fn place(&self, kind: Kind, key: &str) -> Option<Place> {
        // A borrowed pair is no key of the map; this is rare enough to build one.
        self.keys.get(&(kind, key.to_owned())).copied()
    }

    /// The slots after the event `after`, each with the first sequence it stands for.
    pub fn after(&self, after: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let begin = self.slots.partition_point(|slot| slot.sequence <= after);
        let before = begin
            .checked_sub(1)
            .and_then(|index| self.slots.get(index))
            .map_or(self.acked, |slot| slot.sequence);
        self.slots.range(begin..).scan(before, |before, slot| {
            let first = *before + 1;
            *before = slot.sequence;
            Some((first, slot))
        })
    }

    /// Takes a record in, as it follows in the file.
    ///
    /// # Errors
    /// It cannot follow what came before.
    pub fn apply(&mut self, record: &Record) -> Result<(), &'static str> {
        match &record.content {
            Content::Base { acked } => {
                if self.position != 0 || record.sequence != *acked {
                    return Err("a base that is not the first record");
                }
                self.position = *acked;
                self.acked = *acked;
            }
            Content::Event(_) => {
                if record.sequence != self.position.wrapping_add(1) {
                    return Err("an event out of sequence");
                }
                self.take_event(record);
            }
            Content::Dropped { first, .. } => {
                let next = *first == self.position.wrapping_add(1);
                let known = record.sequence <= self.position;
                if *first == 0 || *first > record.sequence || !(next || known) {
                    return Err("dropped events out of sequence");
                }
                self.take_dropped(*first, record);
            }
            Content::Ack { acked } => {
                if *acked > self.position {
                    return Err("an acknowledgement of events that were never written");
                }
                self.ack(*acked);
            }
            Content::Put(..) | Content::Delete(..) => {
                if record.sequence != self.position {
                    return Err("a keyed record out of sequence");
                }
                self.take_keyed(record);
            }
        }
        Ok(())
    }

    /// Takes in a record that was found behind damage: what is missing before it is passed over.
    pub fn salvage(&mut self, record: &Record) {
        match &record.content {
            Content::Base { acked } => {
                self.position = self.position.max(*acked);
                self.ack(*acked);
            }
            Content::Event(_) if record.sequence > self.position => self.take_event(record),
            Content::Event(_) => {}
            Content::Dropped { first, .. } => {
                if *first > 0 && *first <= record.sequence {
                    self.take_dropped(*first, record);
                }
            }
            Content::Ack { acked } => {
                self.position = self.position.max(*acked);
                self.ack(*acked);
            }
            Content::Put(..) | Content::Delete(..) => self.take_keyed(record),
        }
    }

    /// Forgets the events up to `acked`, as far as they were ever written.
    pub fn ack(&mut self, acked: u64) {
        let acked = acked.min(self.position);
        if acked <= self.acked {
            return;
        }
        self.acked = acked;
        while let Some(slot) = self.slots.front().filter(|slot| slot.sequence <= acked) {
            self.live = self.live.saturating_sub(slot.place.total());
            self.slots.pop_front();
        }
        if self.slots.is_empty() {
            // An outage may have made it large.
            self.slots.shrink_to(64);
        }
    }

    /// Which events to drop so that at most `events` slots and `bytes` live bytes remain: the oldest
    /// telemetry first, then the oldest statuses. Neighbours become one range, also with what stands
    /// for dropped ones already. It may come to less than was asked for: results are never dropped.
    pub fn to_drop(&self, events: usize, bytes: u64) -> Vec<Range> {
        let gap = total(24) as u64;
        let mut gone: Vec<bool> = self
            .slots
            .iter()
            .map(|slot| slot.holds == Holds::Dropped)
            .collect();
        let mut slots = self.slots.len();
        let mut live = self.live;
        for class in [Class::Telemetry, Class::Status] {
            for (index, slot) in self.slots.iter().enumerate() {
                if slots <= events && live <= bytes {
                    break;
                }
                if slot.holds != Holds::Event(class) {
                    continue;
                }
                let is_gone = |index: Option<usize>| {
                    index.and_then(|index| gone.get(index).copied()) == Some(true)
                };
                let neighbours = usize::from(is_gone(index.checked_sub(1)))
                    + usize::from(is_gone(Some(index + 1)));
                // One slot stands for it and its neighbours, where there were 1 + neighbours.
                slots -= neighbours;
                live = (live + gap)
                    .saturating_sub(slot.place.total())
                    .saturating_sub(gap * neighbours as u64);
                if let Some(gone) = gone.get_mut(index) {
                    *gone = true;
                }
            }
        }
        self.ranges(&gone)
    }

    /// The runs of `gone` slots in which something is dropped anew.
    fn ranges(&self, gone: &[bool]) -> Vec<Range> {
        let mut ranges = Vec::new();
        let mut run: Option<Range> = None;
        let mut before = self.acked;
        let mut end = |run: Option<Range>| ranges.extend(run.filter(|range| range.anew > 0));
        for (slot, gone) in self.slots.iter().zip(gone) {
            if *gone {
                let range = run.get_or_insert(Range {
                    first: before + 1,
                    last: 0,
                    anew: 0,
                });
                range.last = slot.sequence;
                range.anew += u64::from(slot.holds != Holds::Dropped);
            } else {
                end(run.take());
            }
            before = slot.sequence;
        }
        end(run);
        ranges
    }

    fn take_event(&mut self, record: &Record) {
        let Content::Event(class) = record.content else {
            return;
        };
        self.position = record.sequence;
        self.push_back(record, Holds::Event(class));
    }

    fn take_dropped(&mut self, first: u64, record: &Record) {
        if record.sequence > self.position {
            self.position = record.sequence;
            self.push_back(record, Holds::Dropped);
            return;
        }
        if record.sequence <= self.acked {
            return;
        }
        let begin = self.slots.partition_point(|slot| slot.sequence < first);
        let end = self
            .slots
            .partition_point(|slot| slot.sequence <= record.sequence);
        let freed: u64 = self
            .slots
            .drain(begin..end)
            .map(|slot| slot.place.total())
            .sum();
        let slot = Slot {
            sequence: record.sequence,
            place: Place::of(record),
            holds: Holds::Dropped,
        };
        self.live = (self.live + slot.place.total()).saturating_sub(freed);
        self.slots.insert(begin, slot);
    }

    fn push_back(&mut self, record: &Record, holds: Holds) {
        if record.sequence <= self.acked {
            return;
        }
        let place = Place::of(record);
        self.live += place.total();
        self.slots.push_back(Slot {
            sequence: record.sequence,
            place,
            holds,
        });
    }

    fn take_keyed(&mut self, record: &Record) {
        let former = match &record.content {
            Content::Put(kind, key) => {
                let place = Place::of(record);
                self.live += place.total();
                self.keyed += place.total();
                self.keys.insert((*kind, key.clone()), place)
            }
            Content::Delete(kind, key) => self.keys.remove(&(*kind, key.clone())),
            _ => None,
        };
        let freed = former.map_or(0, Place::total);
        self.live = self.live.saturating_sub(freed);
        self.keyed = self.keyed.saturating_sub(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index of events of these classes (r, s, t), numbered from 1.
    fn index(classes: &str) -> Index {
        let mut index = Index::default();
        for (number, class) in (1..).zip(classes.chars()) {
            let class = match class {
                'r' => Class::Result,
                's' => Class::Status,
                _ => Class::Telemetry,
            };
            index.apply(&record(number, Content::Event(class))).unwrap();
        }
        index
    }

    fn record(sequence: u64, content: Content) -> Record {
        Record {
            offset: 8192 + sequence * 64,
            length: 100,
            first: true,
            last: true,
            durable_to: 8192,
            sequence,
            content,
        }
    }

    fn drop_down_to(index: &mut Index, events: usize) -> Vec<(u64, u64)> {
        let ranges = index.to_drop(events, u64::MAX);
        for range in &ranges {
            let content = Content::Dropped {
                time_ms: 0,
                first: range.first,
                count: range.last - range.first + 1,
            };
            index.apply(&record(range.last, content)).unwrap();
        }
        ranges
            .iter()
            .map(|range| (range.first, range.last))
            .collect()
    }

    #[test]
    fn the_oldest_telemetry_goes_first_then_the_oldest_statuses_and_never_a_result() {
        for (classes, down_to, dropped) in [
            ("ttttt", 3, vec![(1, 3)]),
            ("sttts", 3, vec![(2, 4)]),
            ("stststst", 6, vec![(1, 4), (6, 6), (8, 8)]),
            ("ssss", 2, vec![(1, 3)]),
            ("rstrst", 4, vec![(2, 3), (5, 6)]),
            ("rrrr", 1, vec![]),
            ("ttt", 3, vec![]),
            // One alone between two others makes no room, but may on the way to more.
            ("rtr", 2, vec![(2, 2)]),
        ] {
            let mut index = index(classes);
            assert_eq!(drop_down_to(&mut index, down_to), dropped, "{classes}");
            let results = classes.matches('r').count();
            let kept = |slot: &&Slot| slot.holds == Holds::Event(Class::Result);
            assert_eq!(index.slots.iter().filter(kept).count(), results);
        }
    }

    #[test]
    fn neighbours_become_one_range_also_with_what_was_dropped_before() {
        let mut index = index("tttsttr");
        assert_eq!(drop_down_to(&mut index, 5), [(1, 3)]);
        assert_eq!(drop_down_to(&mut index, 3), [(1, 6)]);
        let left: Vec<(u64, u64)> = index
            .after(0)
            .map(|(first, slot)| (first, slot.sequence))
            .collect();
        assert_eq!(left, [(1, 6), (7, 7)]);
        // Nothing anew, nothing to say.
        assert_eq!(drop_down_to(&mut index, 1), []);
    }

    #[test]
    fn an_acknowledgement_within_a_dropped_range_leaves_the_rest_of_it() {
        let mut index = index("ttttr");
        assert_eq!(drop_down_to(&mut index, 2), [(1, 4)]);
        index.ack(2);
        let left: Vec<(u64, u64)> = index
            .after(2)
            .map(|(first, slot)| (first, slot.sequence))
            .collect();
        assert_eq!(left, [(3, 4), (5, 5)]);
        index.ack(99);
        assert_eq!((index.acked, index.events(), index.live()), (5, 0, 0));
    }

    #[test]
    fn live_bytes_are_those_of_what_is_needed() {
        let mut index = index("rst");
        let one = total(100) as u64;
        assert_eq!(index.live(), 3 * one);
        let key = |key: &str| (Kind::Mark, key.to_owned());
        for name in ["a", "a", "b"] {
            let (kind, key) = key(name);
            index.apply(&record(3, Content::Put(kind, key))).unwrap();
        }
        assert_eq!((index.live(), index.keyed()), (5 * one, 2 * one));
        let (kind, name) = key("a");
        index
            .apply(&record(3, Content::Delete(kind, name)))
            .unwrap();
        index.ack(2);
        assert_eq!((index.live(), index.keyed()), (2 * one, one));
    }
}
