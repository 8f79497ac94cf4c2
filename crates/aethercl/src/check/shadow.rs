//! Shadow memory: pages that are allocated on first use.

/// Entries per page.
const PAGE: usize = 1024;

/// A long sparse array.
pub struct Shadow<T> {
    pages: Vec<Option<Box<[T]>>>,
}

impl<T: Clone + Copy + Default> Shadow<T> {
    /// Returns an array of this many entries, all with the default value.
    pub fn new(entries: usize) -> Shadow<T> {
        Shadow { pages: (0..entries.div_ceil(PAGE)).map(|_| None).collect() }
    }

    /// Returns an entry; `None` beyond the end.
    #[inline(always)]
    pub fn get(&mut self, at: usize) -> Option<&mut T> {
        let page = self.pages.get_mut(at / PAGE)?;
        Some(&mut page.get_or_insert_with(|| vec![T::default(); PAGE].into_boxed_slice())[at % PAGE])
    }

    /// Returns the value of an entry; the default beyond the end.
    #[inline(always)]
    pub fn peek(&self, at: usize) -> T {
        self.pages.get(at / PAGE).and_then(Option::as_ref).map_or(T::default(), |page| page[at % PAGE])
    }

    /// Returns at most `most` entries starting at `at`, within one page.
    #[inline(always)]
    pub fn run(&mut self, at: usize, most: usize) -> &mut [T] {
        let Some(page) = self.pages.get_mut(at / PAGE) else { return &mut [] };
        let page = page.get_or_insert_with(|| vec![T::default(); PAGE].into_boxed_slice());
        &mut page[at % PAGE..(at % PAGE + most).min(PAGE)]
    }

    /// Does the same without allocation; `None` if the page was never touched.
    #[inline(always)]
    pub fn peek_run(&self, at: usize, most: usize) -> Option<&[T]> {
        let page = self.pages.get(at / PAGE)?.as_ref()?;
        Some(&page[at % PAGE..(at % PAGE + most).min(PAGE)])
    }

    /// Returns all entries of touched pages.
    pub fn touched(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten().flat_map(|page| page.iter_mut())
    }

    /// Returns pairs of entries that exist in both arrays.
    pub fn common<'s>(&'s self, other: &'s Shadow<T>) -> impl Iterator<Item = (&'s T, &'s T)> {
        let pages = self.pages.iter().zip(&other.pages);
        let both = pages.filter_map(|(a, b)| Some((a.as_ref()?, b.as_ref()?)));
        both.flat_map(|(a, b)| a.iter().zip(b.iter()))
    }
}
