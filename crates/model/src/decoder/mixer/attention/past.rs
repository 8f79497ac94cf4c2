//! Keys and values of a text before the tokens of a pass.

use crate::decoder::pass::Past;
use netcl_tensor::ops::paged_cache::{TextPages, cache_append, cache_gather};
use netcl_tensor::{Result, Tensor};

/// Writes keys and values (B, T, 2 KH, D) of this pass into the cache. Returns keys and values (B, KH, S, D) of the tokens so far: all, or at least
/// those in the window of the new ones.
pub(super) fn with(
    past: Past<'_>,
    layer: usize,
    rows: &Tensor,
    window: Option<usize>,
) -> Result<[Tensor; 2]> {
    let [_, t, all, size] = rows.dims4()?;
    let cache = past.state(layer)?.rows();
    let start = past.start;
    let seen = match past.pages {
        None => {
            cache.write_slice(1, start, rows)?;
            cache.slice(1, 0..start + t)?
        }
        Some(pages) => {
            let text = TextPages { rows: cache, pages };
            cache_append(&rows.reshape([t, all, size])?, text, start)?;
            let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
            match start == 0 && cache.dtype() == rows.dtype() {
                true => rows.clone(),
                false => {
                    let rows = cache_gather(text, first..start + t, size, rows.dtype())?;
                    rows.reshape([1, start + t - first, all, size])?
                }
            }
        }
    };
    let heads = |range| seen.slice(2, range)?.permute(&[0, 2, 1, 3]);
    Ok([heads(0..all / 2)?, heads(all / 2..all)?])
}
