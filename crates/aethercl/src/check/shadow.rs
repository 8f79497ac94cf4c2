//! Memory about memory: pages that come into being where they are touched.

/// Entries of a page.
const PAGE: usize = 1024;

/// A long array of which little is used.
pub struct Shadow<T> {
    pages: Vec<Option<Box<[T]>>>,
}

impl<T: Clone + Copy + Default> Shadow<T> {
    /// An array of so many entries, all the default.
    pub fn new(entries: usize) -> Shadow<T> {
        Shadow { pages: (0..entries.div_ceil(PAGE)).map(|_| None).collect() }
    }

    /// An entry; none beyond the end.
    #[inline(always)]
    pub fn get(&mut self, at: usize) -> Option<&mut T> {
        let page = self.pages.get_mut(at / PAGE)?;
        Some(&mut page.get_or_insert_with(|| vec![T::default(); PAGE].into_boxed_slice())[at % PAGE])
    }

    /// What an entry holds; the default beyond the end.
    #[inline(always)]
    pub fn peek(&self, at: usize) -> T {
        self.pages.get(at / PAGE).and_then(Option::as_ref).map_or(T::default(), |page| page[at % PAGE])
    }

    /// Entries from one on, at most so many: those of its page.
    #[inline(always)]
    pub fn run(&mut self, at: usize, most: usize) -> &mut [T] {
        let Some(page) = self.pages.get_mut(at / PAGE) else { return &mut [] };
        let page = page.get_or_insert_with(|| vec![T::default(); PAGE].into_boxed_slice());
        &mut page[at % PAGE..(at % PAGE + most).min(PAGE)]
    }

    /// The same without making them; none where nobody touched their page.
    #[inline(always)]
    pub fn peek_run(&self, at: usize, most: usize) -> Option<&[T]> {
        let page = self.pages.get(at / PAGE)?.as_ref()?;
        Some(&page[at % PAGE..(at % PAGE + most).min(PAGE)])
    }

    /// All entries of pages that were touched.
    pub fn touched(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten().flat_map(|page| page.iter_mut())
    }

    /// Entries that both have, pairwise.
    pub fn common<'s>(&'s self, other: &'s Shadow<T>) -> impl Iterator<Item = (&'s T, &'s T)> {
        let pages = self.pages.iter().zip(&other.pages);
        let both = pages.filter_map(|(a, b)| Some((a.as_ref()?, b.as_ref()?)));
        both.flat_map(|(a, b)| a.iter().zip(b.iter()))
    }
}
