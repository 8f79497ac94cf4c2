//! Groups of ranks that compute together: threads of this process, or the processes of an MPI launcher.

use crate::edge::{raised, run, wait};
use crate::tensor::PyTensor;
use netcl::dist::{Group, Mpi, Reduction, divide, divide_within, launched, local};
use netcl::prelude::{Error, Result, Tensor};
use netcl::train::PATIENCE;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One rank's handle of a group.
#[pyclass(name = "RankGroup", module = "netcl", frozen)]
pub struct PyGroup {
    /// `None` after the rank has left.
    group: Mutex<Option<Group>>,
    rank: usize,
    size: usize,
    transport: String,
}

impl From<Group> for PyGroup {
    fn from(group: Group) -> Self {
        let (rank, size, transport) = (group.rank(), group.size(), group.transport().name());
        Self { group: Mutex::new(Some(group)), rank, size, transport }
    }
}

impl PyGroup {
    /// Returns the group, unless this rank has left it.
    pub fn get(&self, py: Python<'_>) -> PyResult<Group> {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let left = || raised(py, &Error::device(format!("rank {} has left its group", self.rank)));
        group.clone().ok_or_else(left)
    }
}

fn reduction(how: &str) -> Result<Reduction> {
    match how {
        "sum" => Ok(Reduction::Sum),
        "mean" => Ok(Reduction::Mean),
        "max" => Ok(Reduction::Max),
        _ => Err(Error::format(format!("all_reduce: op is {how:?}, expected \"sum\", \"mean\" or \"max\""))),
    }
}

/// Returns the longest length of any rank's bytes.
fn longest(group: &Group, own: usize) -> Result<(usize, Vec<usize>)> {
    let all = group.all_gather(&[own as u64])?;
    let all: Vec<usize> = all.into_iter().map(|n| usize::try_from(n).unwrap_or(0)).collect();
    Ok((all.iter().copied().max().unwrap_or(0), all))
}

fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.resize(length, 0);
    out
}

/// Sends `parts[rank]` of the rank `root` to each rank.
fn scatter(group: &Group, parts: Option<&[Vec<u8>]>, root: usize) -> Result<Vec<u8>> {
    let leads = group.rank() == root;
    let parts = parts.unwrap_or_default();
    let complete = match leads && parts.len() != group.size() {
        true => Err(Error::shape(format!("scatter: {} parts for {} ranks", parts.len(), group.size()))),
        false => Ok(()),
    };
    group.all_succeed(complete)?;
    let mut lengths = vec![0u64; group.size()];
    lengths.iter_mut().zip(parts).for_each(|(n, part)| *n = part.len() as u64);
    group.broadcast(&mut lengths, root)?;
    let length = |n: u64| usize::try_from(n).unwrap_or(0);
    let most = lengths.iter().map(|n| length(*n)).max().unwrap_or(0);
    let mut own = vec![0; most];
    let all: Vec<u8> = match leads {
        true => parts.iter().flat_map(|part| padded(part, most)).collect(),
        false => vec![0; most * group.size()],
    };
    group.scatter(&all, &mut own, root)?;
    own.truncate(length(lengths[group.rank()]));
    Ok(own)
}

/// Returns the bytes of all ranks at the rank `root`, and nothing elsewhere.
fn gather(group: &Group, own: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
    let (most, lengths) = longest(group, own.len())?;
    let mut all = vec![0; most * group.size()];
    group.gather(&padded(own, most), &mut all, root)?;
    let parts = lengths.iter().enumerate().map(|(i, n)| all[i * most..][..*n].to_vec());
    Ok((group.rank() == root).then(|| parts.collect()))
}

#[pymethods]
impl PyGroup {
    /// This rank.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }
    /// Number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }
    /// How messages travel: `threads`, or name and version of an MPI library.
    #[getter]
    fn transport(&self) -> &str {
        &self.transport
    }
    /// Replaces the elements of a contiguous tensor with their sum, mean or maximum over all ranks.
    fn all_reduce(&self, py: Python<'_>, x: &PyTensor, how: &str) -> PyResult<()> {
        let (group, x, how) = (self.get(py)?, x.inner.clone(), how.to_owned());
        wait(py, move || group.all_reduce_tensor(&x, reduction(&how)?))
    }
    /// Replaces the elements of a contiguous tensor with those of the rank `root`.
    fn broadcast(&self, py: Python<'_>, x: &PyTensor, root: usize) -> PyResult<()> {
        let (group, x) = (self.get(py)?, x.inner.clone());
        wait(py, move || group.broadcast_tensor(&x, root))
    }
    /// Returns the bytes of all ranks, in the order of ranks.
    fn all_gather<'py>(&self, py: Python<'py>, data: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let group = self.get(py)?;
        let all = wait(py, move || group.all_gather_bytes(&data))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }
    /// Returns this rank's part of the parts of the rank `root`.
    #[pyo3(signature = (parts, root))]
    fn scatter<'py>(
        &self,
        py: Python<'py>,
        parts: Option<Vec<Vec<u8>>>,
        root: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let group = self.get(py)?;
        let own = wait(py, move || scatter(&group, parts.as_deref(), root))?;
        Ok(PyBytes::new(py, &own))
    }
    /// Returns the bytes of all ranks at the rank `root`, and `None` elsewhere.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
        root: usize,
    ) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let group = self.get(py)?;
        let all = wait(py, move || gather(&group, &data, root))?;
        Ok(all.map(|all| all.iter().map(|bytes| PyBytes::new(py, bytes)).collect()))
    }
    /// Waits until all ranks have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.get(py)?;
        wait(py, move || group.barrier())
    }
    /// Returns the group of ranks with the same color.
    fn split(&self, py: Python<'_>, color: u32) -> PyResult<Self> {
        let group = self.get(py)?;
        wait(py, move || group.split(color)).map(Self::from)
    }
    /// Ends this rank's participation. All ranks call it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.get(py)?;
        wait(py, move || group.close())
    }
    /// Ends this rank at once: ranks that wait for it get an error.
    fn leave(&self) {
        drop(self.group.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
    /// Ends all processes at once, after an error of this one.
    fn abort(&self, py: Python<'_>, code: u8) -> PyResult<()> {
        self.get(py).map(|group| group.abort(code))
    }
}

/// Returns the ranks of a group of `size` threads. A rank that others wait for longer than `timeout` seconds counts as hung.
#[pyfunction]
#[pyo3(signature = (size, timeout=None))]
fn local_ranks(size: usize, timeout: Option<f64>) -> PyResult<Vec<PyGroup>> {
    let patience = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Ok(local(size, patience.unwrap_or(PATIENCE)).into_iter().map(PyGroup::from).collect())
}

/// Returns the launcher that started this process with others: its name, size, rank, and rank on this machine.
#[pyfunction]
fn mpi_launcher() -> Option<(String, usize, usize, usize)> {
    launched(&|name| std::env::var(name).ok()).map(|l| (l.name.to_owned(), l.size, l.rank, l.local_rank))
}

/// Joins the processes of the MPI launcher. With `attach`, another library of this process has initialized MPI, and will end it.
#[pyfunction]
fn join_mpi(py: Python<'_>, attach: bool) -> PyResult<PyGroup> {
    let group = run(py, || {
        let launcher = launched(&|name| std::env::var(name).ok());
        let library = std::env::var_os("NETCL_MPI_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
        let join = if attach { Mpi::attach } else { Mpi::join };
        join(launcher.as_ref(), library.as_deref(), PATIENCE)
    });
    group.map(PyGroup::from)
}

/// Replaces the elements of each rank's contiguous tensor with their sum, mean or maximum, for ranks of this process.
#[pyfunction]
fn all_reduce_tensors(
    py: Python<'_>,
    groups: Vec<PyRef<'_, PyGroup>>,
    tensors: Vec<PyRef<'_, PyTensor>>,
    how: &str,
) -> PyResult<()> {
    let groups = groups.iter().map(|group| group.get(py)).collect::<PyResult<Vec<Group>>>()?;
    let tensors: Vec<Tensor> = tensors.iter().map(|x| x.inner.clone()).collect();
    let how = how.to_owned();
    wait(py, move || {
        let how = reduction(&how)?;
        if groups.len() != tensors.len() {
            return Err(Error::shape(format!(
                "all_reduce: {} tensors for {} ranks",
                tensors.len(),
                groups.len()
            )));
        }
        std::thread::scope(|scope| {
            let ranks = groups.iter().zip(&tensors);
            let threads: Vec<_> =
                ranks.map(|(group, x)| scope.spawn(move || group.all_reduce_tensor(x, how))).collect();
            let mut ends = threads.into_iter().map(|thread| thread.join());
            ends.try_for_each(|end| end.unwrap_or_else(|_| Err(Error::internal("a rank panicked"))))
        })
    })
}

/// Divides `count` elements by weights, with at most `most` elements for each.
#[pyfunction]
#[pyo3(signature = (count, weights, most=None))]
fn divide_by_weights(count: usize, weights: Vec<f64>, most: Option<Vec<usize>>) -> Option<Vec<usize>> {
    match most {
        Some(most) => divide_within(count, &weights, &most),
        None => Some(divide(count, &weights)),
    }
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGroup>()?;
    m.add_function(wrap_pyfunction!(local_ranks, m)?)?;
    m.add_function(wrap_pyfunction!(mpi_launcher, m)?)?;
    m.add_function(wrap_pyfunction!(join_mpi, m)?)?;
    m.add_function(wrap_pyfunction!(all_reduce_tensors, m)?)?;
    m.add_function(wrap_pyfunction!(divide_by_weights, m)?)
}
