//! Page allocation. Full pages of final tokens are immutable: they are found again by their tokens, and sequences with the same prefix share them.
//!
//! A full page of final tokens is sealed. It is found by a hash, by its tokens and by the page before it. A sealed or shared page is copied before it
//! is written.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

/// A full page that does not change any more.
struct Sealed {
    hash: u64,
    /// Unique over all pages that were ever sealed.
    serial: u64,
    /// Serial number of the preceding page, because keys and values depend on all earlier tokens. For the first page of a sequence, its kind.
    before: u64,
    tokens: Box<[u32]>,
}

#[derive(Default)]
struct Page {
    /// Number of sequences that use it.
    texts: usize,
    sealed: Option<Sealed>,
    /// Time at which the last sequence released it.
    since: u64,
}

/// All pages of a cache.
pub(super) struct Allocator {
    /// Tokens per page.
    size: usize,
    pages: Vec<Page>,
    /// Pages without content.
    free: Vec<u32>,
    /// Sealed pages without a sequence, by release time.
    idle: BTreeMap<u64, u32>,
    /// Sealed pages by the hash of their tokens and their predecessor.
    known: HashMap<u64, Vec<u32>>,
    /// Whether pages are reused.
    share: bool,
    clock: u64,
}

/// Returns the predecessor of the first page of a sequence; it is not a serial number.
fn root(kind: usize) -> u64 {
    u64::MAX - kind as u64
}

fn hash_of(before: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, tokens).hash(&mut hasher);
    hasher.finish()
}

impl Allocator {
    pub fn new(count: usize, size: usize, share: bool) -> Self {
        let pages: Vec<Page> = (0..count).map(|_| Page::default()).collect();
        let free = (0..count).rev().filter_map(|page| u32::try_from(page).ok()).collect();
        Self { size, pages, free, idle: BTreeMap::new(), known: HashMap::new(), share, clock: 0 }
    }

    /// Returns the tokens per page.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        self.pages.len()
    }
    /// Returns the number of pages without a sequence.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }
    /// Returns the number of available pages with reusable content.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    fn page(&mut self, page: u32) -> Option<&mut Page> {
        self.pages.get_mut(page as usize)
    }

    /// Returns a sealed page with these tokens after the page with serial number `before`.
    fn known(&self, before: u64, tokens: &[u32]) -> Option<(u32, u64)> {
        let pages = self.known.get(&hash_of(before, tokens))?;
        pages.iter().find_map(|page| {
            let sealed = self.pages.get(*page as usize)?.sealed.as_ref()?;
            (sealed.before == before && *sealed.tokens == *tokens).then_some((*page, sealed.serial))
        })
    }

    /// Adds a sequence to a page.
    fn share(&mut self, page: u32) {
        let Some(shared) = self.page(page) else { return };
        shared.texts += 1;
        let since = shared.since;
        if shared.texts == 1 {
            self.idle.remove(&since);
        }
    }

    /// Returns the pages that hold the prefix of a sequence, as far as they exist, and assigns them to it. Only sequences of the same `kind` share
    /// pages.
    pub fn find(&mut self, ids: &[u32], kind: usize) -> Vec<u32> {
        let (mut found, mut before) = (Vec::new(), root(kind));
        for tokens in ids.chunks_exact(self.size) {
            let Some((page, serial)) = self.known(before, tokens) else { break };
            self.share(page);
            found.push(page);
            before = serial;
        }
        found
    }

    /// Returns an empty page; without one, evicts the page that was idle longest.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.idle.pop_first()?;
                self.forget(page);
                page
            }
        };
        self.page(page)?.texts = 1;
        Some(page)
    }

    fn forget(&mut self, page: u32) {
        let Some(sealed) = self.page(page).and_then(|page| page.sealed.take()) else { return };
        if let Some(pages) = self.known.get_mut(&sealed.hash) {
            pages.retain(|known| *known != page);
            if pages.is_empty() {
                self.known.remove(&sealed.hash);
            }
        }
    }

    /// Releases a page of a sequence.
    pub fn give(&mut self, page: u32) {
        self.clock += 1;
        let now = self.clock;
        let Some(given) = self.page(page) else { return };
        given.texts = given.texts.saturating_sub(1);
        if given.texts > 0 {
            return;
        }
        if given.sealed.is_some() {
            given.since = now;
            self.idle.insert(now, page);
        } else {
            self.free.push(page);
        }
    }

    /// Returns true if a page must be copied before a write.
    pub fn is_shared(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|page| page.texts > 1 || page.sealed.is_some())
    }

    /// Seals a page of a sequence of this `kind` that is full of these final tokens; `before` is the preceding page. Returns the page that the
    /// sequence uses from now on: another one if it has the same content.
    pub fn seal(&mut self, page: u32, before: Option<u32>, tokens: &[u32], kind: usize) -> u32 {
        let serial = |page: u32| Some(self.pages.get(page as usize)?.sealed.as_ref()?.serial);
        let before = match before {
            None => root(kind),
            Some(before) => match serial(before) {
                Some(serial) => serial,
                // Its prefix cannot be found, so it cannot be found either.
                None => return page,
            },
        };
        if !self.share || serial(page).is_some() {
            return page;
        }
        if let Some((same, _)) = self.known(before, tokens) {
            self.share(same);
            self.give(page);
            return same;
        }
        self.clock += 1;
        let (serial, hash) = (self.clock, hash_of(before, tokens));
        if let Some(sealed) = self.page(page) {
            sealed.sealed = Some(Sealed { hash, serial, before, tokens: tokens.into() });
            self.known.entry(hash).or_default().push(page);
        }
        page
    }

    /// Returns true if every page is free, idle or used by sequences, with the counts in `held`.
    #[cfg(test)]
    pub fn is_consistent(&self, held: &[u32]) -> bool {
        let mut texts = vec![0; self.pages.len()];
        held.iter().for_each(|page| texts[*page as usize] += 1);
        let (mut free, mut idle) = (self.free.clone(), self.idle.values().copied().collect::<Vec<_>>());
        free.sort_unstable();
        idle.sort_unstable();
        (0..self.pages.len() as u32).all(|at| {
            let page = &self.pages[at as usize];
            let places = (free.binary_search(&at).is_ok(), idle.binary_search(&at).is_ok());
            let expected =
                (page.texts == 0 && page.sealed.is_none(), page.texts == 0 && page.sealed.is_some());
            page.texts == texts[at as usize] && places == expected
        }) && free.len() + idle.len() + self.pages.iter().filter(|page| page.texts > 0).count()
            == self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_pages_are_found_by_all_tokens_up_to_their_end() {
        let mut all = Allocator::new(6, 2, true);
        let [a, b] = [all.take().unwrap(), all.take().unwrap()];
        assert_eq!(all.seal(a, None, &[1, 2], 0), a);
        assert_eq!(all.seal(b, Some(a), &[3, 4], 0), b);
        assert_eq!(all.find(&[1, 2, 3, 4, 5], 0), [a, b]);
        assert_eq!(all.find(&[1, 2, 3], 0), [a]);
        assert!(all.find(&[3, 4], 0).is_empty() && all.find(&[1], 0).is_empty());
        assert!(all.is_consistent(&[a, a, a, b, b]));
        assert!(all.find(&[1, 2], 1).is_empty(), "a text of another kind");
        // Another sequence with the same tokens gets the same page, and its own page is free again.
        let c = all.take().unwrap();
        assert_eq!(all.seal(c, None, &[1, 2], 0), a);
        assert!(all.is_consistent(&[a, a, a, a, b, b]));
        // The same tokens after different ones are not equal.
        let c = all.take().unwrap();
        assert_eq!(all.seal(c, None, &[3, 4], 0), c);
        assert!(all.is_consistent(&[a, a, a, a, b, b, c]));
    }

    #[test]
    fn what_was_idle_longest_is_forgotten_first() {
        let mut all = Allocator::new(3, 2, true);
        let pages: Vec<u32> = (0..3).map(|_| all.take().unwrap()).collect();
        assert_eq!((all.take(), all.available()), (None, 0));
        for (i, page) in pages.iter().enumerate() {
            all.seal(*page, None, &[i as u32, 9], 0);
        }
        pages.iter().rev().for_each(|page| all.give(*page));
        assert!(all.available() == 3 && all.idle() == 3 && all.is_consistent(&[]));
        assert!(all.is_shared(pages[0]), "its content would be lost");
        assert_eq!(all.find(&[1, 9], 0), [pages[1]]);
        assert_eq!(all.take(), Some(pages[2]));
        assert!(all.find(&[2, 9], 0).is_empty());
        assert_eq!(all.find(&[0, 9], 0), [pages[0]]);
        assert_eq!(all.take(), None);
        assert!(all.is_consistent(&pages));
    }

    #[test]
    fn hashes_that_meet_are_told_apart_by_their_tokens() {
        let mut all = Allocator::new(2, 1, true);
        let [a, b] = [all.take().unwrap(), all.take().unwrap()];
        all.seal(a, None, &[1], 0);
        all.seal(b, None, &[2], 0);
        // Simulates equal hashes.
        let pages = all.known.values().flatten().copied().collect::<Vec<_>>();
        all.known.values_mut().for_each(|known| known.clone_from(&pages));
        assert_eq!((all.find(&[1], 0), all.find(&[2], 0)), (vec![a], vec![b]));
    }
}
