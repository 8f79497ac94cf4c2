//! Partitioned gradients: each rank keeps only its part (ZeRO-2). A backward pass hands over each gradient as soon as it is computed. Consecutive
//! gradients are copied into one of a few buffers; the sums of a buffer over the ranks go to each rank's part, and the buffer is used again.
//!
//! A captured pass contains the copies. Before and after them it writes to marks, small separate tensors. At the marks, a replay can start work that
//! runs concurrently with the device's queue ([`Stepper::run_between`](super::stepper::Stepper::run_between)).

use super::reducer::Reducer;
use super::zero::{Cell, Shards, cell};
use netcl_device::driver::Event;
use netcl_dist::{Collected, sum_into};
use netcl_tensor::ops::map::map_into;
use netcl_tensor::ops::optimizer::LANES;
use netcl_tensor::tape::GradientSink;
use netcl_tensor::{DType, Device, Error, Result, Tensor};
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of buffers for gradients: one is filled while others are exchanged.
const SLOTS: usize = 3;

/// Returns the bytes of the buffers for this many gradient elements of `width` bytes.
pub(super) fn slots(elements: u64, width: u64) -> u64 {
    let elements = usize::try_from(elements).unwrap_or(usize::MAX);
    let width = usize::try_from(width).unwrap_or(4);
    let one = cell(elements, width).min(elements);
    (one.saturating_mul(width) as u64).saturating_mul(SLOTS as u64)
}

/// A buffer for gradients in flight, and room for the other ranks' gradients of this rank's part.
struct Slot {
    whole: Tensor,
    rooms: Vec<Tensor>,
}

/// Gradients that are being exchanged.
struct UnderWay {
    slot: usize,
    cell: usize,
    /// Whether the sums replace the content of this rank's part.
    first: bool,
    done: Receiver<Result<Collected>>,
}

/// The partitioned gradients of a rank.
pub(super) struct Divided {
    state: Arc<Mutex<State>>,
    /// Tensors written before and after the copies of each cell.
    marks: Vec<Tensor>,
}

struct State {
    device: Device,
    rank: usize,
    cells: Arc<Vec<Cell>>,
    bounds: Vec<Arc<Vec<usize>>>,
    /// Number of uses of each parameter in a forward pass.
    uses: HashMap<String, usize>,
    /// Whether uses are counted, and gradients dropped.
    counting: bool,
    slots: Vec<Slot>,
    /// This rank's part of the sums, and the start of each cell's part.
    shard: Option<Tensor>,
    places: Vec<usize>,
    marks: Vec<Tensor>,
    reducer: Option<Arc<Reducer>>,
    under_way: VecDeque<UnderWay>,
    pass: Pass,
    /// The cells in the order in which a pass completes them.
    order: Vec<usize>,
    /// Whether the pass is the first one of a step.
    first: bool,
}

/// Progress of a pass.
#[derive(Default)]
struct Pass {
    /// Uses of each parameter so far, and the sum of their gradients.
    seen: HashMap<String, (usize, Option<Tensor>)>,
    /// Gradients of each cell that wait for the cell's other gradients.
    waiting: Vec<Vec<(usize, Tensor)>>,
    /// Number of copied cells.
    packed: usize,
    /// Number of marks whose work the pass has done itself, because it runs eagerly.
    done: usize,
}

impl Divided {
    /// Creates the gradients before the first pass, which counts the uses of parameters.
    ///
    /// # Errors
    /// `Memory`.
    pub fn new(device: &Device, shards: &Shards) -> Result<Self> {
        let cells = shards.cells().clone();
        let mark = || Tensor::zeros(device, [1], DType::F32);
        let marks = (0..2 * cells.len()).map(|_| mark()).collect::<Result<Vec<_>>>()?;
        let state = State {
            device: device.clone(),
            rank: shards.rank(),
            bounds: (0..cells.len()).map(|i| shards.bounds(i).clone()).collect(),
            cells,
            uses: HashMap::new(),
            counting: true,
            slots: Vec::new(),
            shard: None,
            places: Vec::new(),
            marks: marks.clone(),
            reducer: None,
            under_way: VecDeque::new(),
            pass: Pass::default(),
            order: Vec::new(),
            first: true,
        };
        Ok(Self { state: Arc::new(Mutex::new(state)), marks })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a sink for the gradients of a backward pass.
    pub fn taker(&self) -> GradientSink {
        let state = self.state.clone();
        Arc::new(move |leaf, grad| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.take(leaf, grad)
        })
    }

    /// Allocates the buffers, after the uses of parameters were counted. Sums of several passes are kept in f32.
    ///
    /// # Errors
    /// `Memory`; `Unsupported` for a parameter that no gradient has reached.
    pub fn start(&self, reducer: Arc<Reducer>, several: bool) -> Result<()> {
        self.state().start(reducer, several)
    }

    /// Starts a step.
    pub fn begin(&self) {
        self.state().first = true;
    }

    /// Starts a forward and backward pass, which may only be recorded.
    pub fn restart(&self) {
        let mut state = self.state();
        let waiting = state.cells.iter().map(|_| Vec::new()).collect();
        state.pass = Pass { waiting, ..Pass::default() };
    }

    /// Returns the tensors that a pass writes before and after the copies of each cell.
    pub fn marks(&self) -> Vec<&Tensor> {
        self.marks.iter().collect()
    }

    /// Must be called after the pass has written mark `i`. Waits for a free slot before copies, and starts the exchange after them.
    ///
    /// # Errors
    /// Errors of the exchange and the device.
    pub fn reached(&self, i: usize) -> Result<()> {
        let mut state = self.state();
        if i < state.pass.done {
            return Ok(());
        }
        state.reached(i)
    }

    /// Records that a pass was enqueued.
    pub fn passed(&self) {
        let mut state = self.state();
        (state.first, state.pass) = (false, Pass::default());
    }

    /// Makes all later commands of the device's queue run after all sums.
    ///
    /// # Errors
    /// Errors of the exchange and the device.
    pub fn finish(&self) -> Result<()> {
        self.state().finish_until(|_| false)
    }

    /// Makes this rank's sums the gradients of the parameters that it updates.
    ///
    /// # Errors
    /// Errors of views; `Internal` before [`Divided::start`].
    pub fn attach(&self, shards: &Shards) -> Result<()> {
        let state = self.state();
        let sums = state.shard.as_ref().ok_or_else(|| Error::internal("gradients without memory"))?;
        shards.own().iter().try_for_each(|(part, cell, at)| {
            let begin = state.places[*cell] + at - state.bounds[*cell][state.rank];
            part.view.set_grad(Some(sums.slice(0, begin..begin + part.range.len())?));
            Ok(())
        })
    }
}

impl State {
    fn start(&mut self, reducer: Arc<Reducer>, several: bool) -> Result<()> {
        if self.shard.is_some() {
            return Ok(());
        }
        let params = || self.cells.iter().flat_map(|cell| &cell.params).map(|piece| &piece.param);
        if let Some(param) = params().find(|param| !self.uses.contains_key(param.name().unwrap_or_default()))
        {
            return Err(Error::unsupported(format!(
                "--zero: no gradient reaches {}; exclude it with --freeze",
                param.name().unwrap_or_default()
            )));
        }
        let Some(dtype) = params().next().map(Tensor::dtype) else { return Ok(()) };
        (self.counting, self.reducer) = (false, Some(reducer));
        let own = |bounds: &Arc<Vec<usize>>| bounds[self.rank + 1] - bounds[self.rank];
        let device = self.device.clone();
        let mut count = 0;
        for bounds in &self.bounds {
            self.places.push(count);
            count += own(bounds).next_multiple_of(LANES);
        }
        let largest = self.cells.iter().map(|cell| cell.count).max().unwrap_or(0);
        let most = self.bounds.iter().map(own).max().unwrap_or(0);
        let others = self.bounds.first().map_or(0, |bounds| bounds.len().saturating_sub(2));
        let tag = device.tag("gradients");
        self.shard = Some(Tensor::zeros(&device, [count], if several { DType::F32 } else { dtype })?);
        for _ in 0..SLOTS.min(self.cells.len()) {
            let whole = Tensor::zeros(&device, [largest], dtype)?;
            let _tag = device.tag("gradients of other ranks");
            let rooms = (0..others).map(|_| Tensor::zeros(&device, [most], dtype)).collect::<Result<_>>()?;
            self.slots.push(Slot { whole, rooms });
        }
        drop(tag);
        Ok(())
    }

    /// Takes a gradient that reaches a parameter.
    fn take(&mut self, leaf: &Tensor, grad: Tensor) -> Result<()> {
        let name = leaf.name().unwrap_or_default().to_owned();
        if self.counting {
            *self.uses.entry(name).or_default() += 1;
            return Ok(());
        }
        let uses = self.uses.get(&name).copied().unwrap_or(0);
        let (count, before) = self.pass.seen.entry(name.clone()).or_default();
        *count += 1;
        let whole = match before.take() {
            Some(sum) => sum.add(&grad)?,
            None => grad,
        };
        if *count < uses {
            *before = Some(whole);
            return Ok(());
        }
        if *count > uses {
            return Err(Error::internal(format!("{name} has more uses than in the first pass, {uses}")));
        }
        let flat = whole.detach().contiguous()?.reshape([whole.count()])?;
        let cells = self.cells.clone();
        for (i, cell) in cells.iter().enumerate() {
            let pieces = cell.params.iter().enumerate();
            for (at, piece) in pieces.filter(|(_, piece)| piece.param.name() == Some(&*name)) {
                self.pass.waiting[i].push((at, flat.slice(0, piece.range.clone())?));
            }
            if self.pass.waiting[i].len() == cell.params.len() {
                let ready = std::mem::take(&mut self.pass.waiting[i]);
                self.pack(i, cell, ready)?;
            }
        }
        Ok(())
    }

    /// Copies the gradients of a cell to the buffer that is exchanged.
    fn pack(&mut self, i: usize, cell: &Cell, ready: Vec<(usize, Tensor)>) -> Result<()> {
        let number = self.pass.packed;
        self.pass.packed += 1;
        self.order.truncate(number);
        self.order.push(i);
        self.mark(2 * number)?;
        let slot = self.slots[number % SLOTS].whole.clone();
        for (at, grad) in ready {
            let place = cell.params[at].at;
            map_into("x0", &[&grad], &[], &slot.slice(0, place..place + grad.count())?)?;
        }
        self.mark(2 * number + 1)
    }

    fn mark(&mut self, i: usize) -> Result<()> {
        let device = self.device.clone();
        device.fill(self.marks[i].storage(), &0f32.to_le_bytes())?;
        if device.is_capturing() {
            return Ok(());
        }
        self.pass.done = i + 1;
        device.outside_capture(|| self.reached(i))
    }

    /// Handles a mark that the queue has reached: before copies, waits until their slot is free; after them, starts the exchange.
    fn reached(&mut self, i: usize) -> Result<()> {
        let number = i / 2;
        let slot = number % SLOTS;
        if i.is_multiple_of(2) {
            return self.finish_until(|rest| rest.iter().all(|other| other.slot != slot));
        }
        let cell = self.order[number];
        let reducer = self.reducer.as_ref().ok_or_else(|| Error::internal("gradients without a reducer"))?;
        let Slot { whole, rooms } = &self.slots[slot];
        let x = whole.slice(0, 0..self.cells[cell].count)?;
        let ready: Event = self.device.mark()?;
        // Drivers submit launches in batches; waiting for one that was not submitted would block.
        self.device.flush()?;
        let done = reducer.collect(x, self.bounds[cell].clone(), rooms.clone(), ready)?;
        self.under_way.push_back(UnderWay { slot, cell, first: self.first, done });
        Ok(())
    }

    /// Adds up finished exchanges, the oldest first, until `enough` of the rest.
    fn finish_until(&mut self, enough: impl Fn(&VecDeque<UnderWay>) -> bool) -> Result<()> {
        while !self.under_way.is_empty() && !enough(&self.under_way) {
            let Some(UnderWay { slot, cell, first, done }) = self.under_way.pop_front() else { break };
            let ended = || Error::internal("the thread that reduces gradients has ended");
            let Collected { there, summed } = done.recv().map_err(|_| ended())??;
            self.device.wait_for(&there)?;
            let bounds = &self.bounds[cell];
            let (begin, end) = (bounds[self.rank], bounds[self.rank + 1]);
            let Some(shard) = self.shard.as_ref().filter(|_| begin < end) else { continue };
            let y = shard.slice(0, self.places[cell]..self.places[cell] + end - begin)?;
            let Slot { whole, rooms } = &self.slots[slot];
            let room = |room: &Tensor| room.slice(0, 0..end - begin);
            let mut terms =
                if summed { Vec::new() } else { rooms.iter().map(room).collect::<Result<_>>()? };
            terms.insert(if summed { 0 } else { self.rank }, whole.slice(0, begin..end)?);
            if !first {
                terms.insert(0, y.clone());
            }
            match terms.as_slice() {
                [only] => map_into("x0", &[only], &[], &y)?,
                _ => sum_into(&terms, &y)?,
            }
        }
        Ok(())
    }
}
