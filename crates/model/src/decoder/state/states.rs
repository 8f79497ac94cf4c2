//! States of texts in memory: those of a few texts of one length with a fixed capacity, or pages that texts use in any order.

use super::spec::Room;
use super::{CacheType, Reach, StateSpec};
use netcl_tensor::{DType, Device, Error, Result, Tensor};

/// The state of one layer.
pub struct LayerState {
    spec: StateSpec,
    rows: Tensor,
    /// Tokens per page.
    page: usize,
    /// For values of contiguous texts, the pages of each, u32 (B, M).
    pages: Option<Tensor>,
}

impl LayerState {
    fn new(device: &Device, spec: StateSpec, room: Room, (kind, dtype): (CacheType, DType)) -> Result<Self> {
        let _tag = device.tag("key/value cache");
        let (shape, stored) = spec.shape(room, kind, dtype);
        let rows = match stored {
            // Zero bits for any type.
            DType::U32 => {
                let rows = Tensor::empty(device, shape, stored)?;
                device.fill(rows.storage(), &[0; 4])?;
                rows
            }
            stored => Tensor::zeros(device, shape, stored)?,
        };
        let pages = match (spec, room) {
            (StateSpec::Recurrent { .. }, Room::Texts { .. }) => {
                Some(in_order(device, [shape[0], shape[1]])?)
            }
            _ => None,
        };
        Ok(Self { spec, rows, page: room.page(), pages })
    }

    /// Returns its memory: for [`StateSpec::Rows`] (B, S, rows, size), or in pages (P, page, rows, size), also in 8 bits.
    pub fn rows(&self) -> &Tensor {
        &self.rows
    }
    /// Returns the tokens per page.
    pub(super) fn page(&self) -> usize {
        self.page
    }
    /// Returns the pages of contiguous texts.
    pub(super) fn own_pages(&self) -> Option<&Tensor> {
        self.pages.as_ref()
    }

    /// Increases the capacity of texts of `length` tokens to `tokens`.
    fn enlarge(&mut self, length: usize, tokens: usize) -> Result<()> {
        let device = self.rows.device().clone();
        let _tag = device.tag("key/value cache");
        let [batch, before, ..] = self.rows.dims4()?;
        let dtype = self.rows.dtype();
        let (shape, _) = self.spec.shape(Room::Texts { count: batch, tokens }, CacheType::Weights, dtype);
        let larger = Tensor::zeros(&device, shape, dtype)?;
        let filled = if self.pages.is_some() { before } else { length };
        if length > 0 {
            larger.write_slice(1, 0, &self.rows.slice(1, 0..filled)?)?;
        }
        self.rows = larger;
        if self.pages.is_some() {
            self.pages = Some(in_order(&device, [batch, shape[1]])?);
        }
        Ok(())
    }
}

/// Returns the pages 0, 1, … of contiguous texts.
fn in_order(device: &Device, [texts, pages]: [usize; 2]) -> Result<Tensor> {
    let all = u32::try_from(texts.saturating_mul(pages));
    let all = all.map_err(|_| Error::shape(format!("decoder: {texts} texts of {pages} pages")))?;
    Tensor::from_u32(device, [texts, pages], &(0..all).collect::<Vec<_>>())
}

/// The states of all layers of a model.
pub struct States {
    layers: Vec<LayerState>,
    page: usize,
}

impl States {
    /// Creates empty states on the device of each layer.
    ///
    /// # Errors
    /// `Memory`.
    pub fn new<'a>(
        layers: impl Iterator<Item = (&'a Device, StateSpec)>,
        room: Room,
        storage: (CacheType, DType),
    ) -> Result<Self> {
        let layers = layers.map(|(device, spec)| LayerState::new(device, spec, room, storage));
        Ok(Self { layers: layers.collect::<Result<_>>()?, page: room.page() })
    }

    /// One state per layer.
    pub fn layers(&self) -> &[LayerState] {
        &self.layers
    }

    /// Returns the tokens per page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Increases the capacity of texts of `length` tokens to `tokens`, one layer at a time: only one layer has two copies at a time.
    ///
    /// # Errors
    /// `Memory`.
    pub fn enlarge(&mut self, length: usize, tokens: usize) -> Result<()> {
        self.layers.iter_mut().try_for_each(|state| state.enlarge(length, tokens))
    }

    /// Copies a page to another one: a text that must write to a shared page writes to a copy.
    ///
    /// # Errors
    /// `Shape` for pages that do not exist; device errors.
    pub fn copy(&self, from: usize, to: usize) -> Result<()> {
        let mut layers = self.layers.iter().map(|state| &state.rows);
        layers.try_for_each(|rows| rows.write_slice(0, to, &rows.slice(0, from..from + 1)?))
    }

    /// Returns the truncation state of a new text.
    pub fn reach(&self) -> Reach {
        let kept = self.layers.iter().filter_map(|state| state.spec.kept(self.page)).min();
        Reach::new(kept, self.page)
    }
}
