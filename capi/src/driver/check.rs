//! The check of `initialize_gpu`: builds the kernels of every function of the driver and compares a small result of each with known numbers.
//!
//! A kernel whose source depends on a size, such as the length of a row, is built again at the first use of another size.

use super::state::BUFFERS;
use super::{backward, forward, loss, memory, optimizer};
use crate::edge::netcl_last_error;
use crate::status::{Failure, NetclStatus, Result};
use netcl::device::Device;
use netcl::kernel::{BuildStats, Programs};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Largest difference from the expected number, relative to one plus its magnitude.
const MAX_ERROR: f32 = 2e-5;

/// The result of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Functions whose result was compared.
    pub functions: usize,
    /// Kernels that the check compiled, or loaded from the cache on disk.
    pub builds: BuildStats,
    /// Time of the check.
    pub time: Duration,
}

/// Checks every function on a device. The first wrong result or failure is an error that names the function.
pub fn check(device: &Device) -> Result<Report> {
    let (started, before) = (Instant::now(), Programs::of(device).stats());
    let mut checker = Checker { device, functions: BTreeSet::new() };
    checker.products(2, [2, 3, 2])?;
    // Large enough for the kernels of matrices with tiles.
    checker.products(2, [64, 64, 64])?;
    checker.elements()?;
    checker.rows()?;
    checker.axes()?;
    checker.lookups()?;
    checker.adam()?;
    let after = Programs::of(device).stats();
    let builds = BuildStats {
        compiled: after.compiled - before.compiled,
        loaded: after.loaded - before.loaded,
        milliseconds: after.milliseconds - before.milliseconds,
    };
    Ok(Report { functions: checker.functions.len(), builds, time: started.elapsed() })
}

/// A buffer that is freed at the end of its scope.
struct Held(*mut c_void);

impl Drop for Held {
    fn drop(&mut self) {
        // A `shutdown_driver` of another thread may have freed it.
        let _ = BUFFERS.remove(self.0);
    }
}

struct Checker<'a> {
    device: &'a Device,
    functions: BTreeSet<&'static str>,
}

impl Checker<'_> {
    fn put(&self, bytes: &[u8]) -> Result<Held> {
        let buffer = self.device.allocate(bytes.len())?;
        self.device.upload(&buffer, 0, bytes)?;
        BUFFERS.insert(buffer).map(Held)
    }
    fn floats(&self, values: &[f32]) -> Result<Held> {
        self.put(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>())
    }
    fn ids(&self, values: &[i32]) -> Result<Held> {
        self.put(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>())
    }
    /// Allocates a result. Its NaNs differ from every expected number.
    fn room(&self, count: usize) -> Result<Held> {
        self.floats(&vec![f32::NAN; count])
    }

    /// Compares the result of a function, which returned `flag`, with the expected numbers.
    fn compare(&mut self, name: &'static str, flag: c_int, out: &Held, expected: &[f32]) -> Result<()> {
        if flag != 1 {
            // SAFETY: the string belongs to this thread, and no other call changes it meanwhile.
            let why = unsafe { CStr::from_ptr(netcl_last_error()) };
            return Err(Failure::new(NetclStatus::Launch, why.to_string_lossy()));
        }
        let mut bytes = vec![0; size_of_val(expected)];
        self.device.download(&BUFFERS.get(out.0)?, 0, &mut bytes)?;
        let found = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        for (i, (found, expected)) in found.zip(expected).enumerate() {
            let is_near = (found - expected).abs() <= MAX_ERROR * (1.0 + expected.abs());
            if !is_near {
                let id = &self.device.capabilities().id;
                let message = format!(
                    "{name} computes {found} for element {i} of its check on {id}, expected {expected}; `netcl doctor` checks each kernel"
                );
                return Err(Failure::new(NetclStatus::Launch, message));
            }
        }
        self.functions.insert(name);
        Ok(())
    }

    /// Products of `batch` matrices (m, k) and (k, n), and their gradients.
    fn products(&mut self, batch: usize, [m, k, n]: [usize; 3]) -> Result<()> {
        let dims = [batch, m, n, k].map(|size| size as c_int);
        for batched in [false, true] {
            let of_b = if batched { batch } else { 1 };
            let drawn = |count: usize, step: usize| -> Vec<f32> {
                (0..count).map(|i| (i * step % 7) as f32 - 3.0).collect()
            };
            let (a, b, dc) = (drawn(batch * m * k, 2), drawn(of_b * k * n, 3), drawn(batch * m * n, 5));
            let [mut c, mut da, mut db] = [vec![0.0; dc.len()], vec![0.0; a.len()], vec![0.0; b.len()]];
            for (row, column, inner) in (0..batch * m)
                .flat_map(|row| (0..n).flat_map(move |column| (0..k).map(move |inner| (row, column, inner))))
            {
                let matrix = if batched { row / m } else { 0 };
                let (at_a, at_b, at_c) =
                    (row * k + inner, (matrix * k + inner) * n + column, row * n + column);
                c[at_c] += a[at_a] * b[at_b];
                da[at_a] += dc[at_c] * b[at_b];
                db[at_b] += dc[at_c] * a[at_a];
            }
            let inputs = [self.floats(&a)?, self.floats(&b)?, self.floats(&dc)?];
            let out = [self.room(c.len())?, self.room(da.len())?, self.room(db.len())?];
            self.product_calls(batched, dims, (&inputs, &out), [&c, &da, &db])?;
        }
        Ok(())
    }

    fn product_calls(
        &mut self,
        batched: bool,
        [b, m, n, k]: [c_int; 4],
        (inputs, out): (&[Held; 3], &[Held; 3]),
        [c, da, db]: [&[f32]; 3],
    ) -> Result<()> {
        let ([x, y, dz], [z, dx, dy]) = (inputs, out);
        let (names, forward, backward): (_, Product, ProductBackward) = if batched {
            (
                ["execute_matmul_batched_on_gpu", "execute_matmul_batched_backward_on_gpu"],
                forward::execute_matmul_batched_on_gpu,
                backward::execute_matmul_batched_backward_on_gpu,
            )
        } else {
            (
                ["execute_matmul_on_gpu", "execute_matmul_backward_on_gpu"],
                forward::execute_matmul_on_gpu,
                backward::execute_matmul_backward_on_gpu,
            )
        };
        let flag = forward(0, x.0, y.0, z.0, b, m, n, k);
        self.compare(names[0], flag, z, c)?;
        let flag = backward(0, x.0, y.0, dz.0, dx.0, dy.0, b, m, n, k);
        self.compare(names[1], flag, dx, da)?;
        self.compare(names[1], flag, dy, db)
    }

    fn elements(&mut self) -> Result<()> {
        let (a, b) = (self.floats(&[-1.0, 0.0, 1.0])?, self.floats(&[2.0, 3.0, 4.0])?);
        let out = self.room(3)?;
        let (x, y, to) = (a.0, b.0, out.0);
        let flag = forward::execute_add_on_gpu(0, x, y, to, 3);
        self.compare("execute_add_on_gpu", flag, &out, &[1.0, 3.0, 5.0])?;
        let flag = forward::execute_mul_on_gpu(0, x, y, to, 3);
        self.compare("execute_mul_on_gpu", flag, &out, &[-2.0, 0.0, 4.0])?;
        let flag = backward::execute_mul_backward_on_gpu(0, y, x, y, to, null_mut(), 3);
        self.compare("execute_mul_backward_on_gpu", flag, &out, &[4.0, 9.0, 16.0])?;
        // 1 · Φ(1), and its derivative Φ(1) + φ(1), with the distribution and density of the standard normal distribution.
        let flag = forward::execute_gelu_on_gpu(0, x, to, 3);
        self.compare("execute_gelu_on_gpu", flag, &out, &[-0.158_655_25, 0.0, 0.841_344_8])?;
        let flag = backward::execute_gelu_backward_on_gpu(0, x, y, to, 3);
        let expected = [-0.166_630_94, 1.5, 4.333_262];
        self.compare("execute_gelu_backward_on_gpu", flag, &out, &expected)?;
        let flag = memory::execute_clone_on_gpu(0, y, to, 12);
        self.compare("execute_clone_on_gpu", flag, &out, &[2.0, 3.0, 4.0])
    }

    fn rows(&mut self) -> Result<()> {
        let (sevenths, logs) = ([1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0], [0.0, 2.0_f32.ln(), 4.0_f32.ln()]);
        let (x, y, dy) = (self.floats(&logs)?, self.floats(&sevenths)?, self.floats(&[1.0, 0.0, 0.0])?);
        let out = self.room(4)?;
        let flag = forward::execute_softmax_on_gpu(0, x.0, out.0, 1, 3);
        self.compare("execute_softmax_on_gpu", flag, &out, &sevenths)?;
        let flag = backward::execute_softmax_backward_on_gpu(0, dy.0, y.0, out.0, 1, 3);
        let expected = [6.0 / 49.0, -2.0 / 49.0, -4.0 / 49.0];
        self.compare("execute_softmax_backward_on_gpu", flag, &out, &expected)?;
        let flag = forward::execute_log_softmax_stable_gpu(0, x.0, out.0, 1, 1, 3);
        self.compare("execute_log_softmax_stable_gpu", flag, &out, &sevenths.map(f32::ln))?;
        let (x, dy) = (self.floats(&[1.0, 1.0, 3.0, 3.0])?, self.floats(&[1.0, 0.0, 0.0, 0.0])?);
        let flag = forward::execute_layernorm_on_gpu(0, x.0, out.0, 1, 4, 0.0);
        self.compare("execute_layernorm_on_gpu", flag, &out, &[-1.0, -1.0, 1.0, 1.0])?;
        let flag = backward::execute_layernorm_backward_on_gpu(0, dy.0, x.0, out.0, 1, 4, 0.0);
        self.compare("execute_layernorm_backward_on_gpu", flag, &out, &[0.5, -0.5, 0.0, 0.0])
    }

    fn axes(&mut self) -> Result<()> {
        let (x, bias) = (self.floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?, self.floats(&[10.0, 20.0, 30.0])?);
        let out = self.room(6)?;
        let (from, to) = (x.0, out.0);
        let transposed = [0.0, 3.0, 1.0, 4.0, 2.0, 5.0];
        let flag = forward::execute_transpose_on_gpu(0, from, to, 2, 3);
        self.compare("execute_transpose_on_gpu", flag, &out, &transposed)?;
        let flag = backward::execute_transpose_backward_on_gpu(0, from, to, 3, 2);
        self.compare("execute_transpose_backward_on_gpu", flag, &out, &transposed)?;
        let flag = forward::execute_transpose_batched_gpu(0, from, to, 1, 2, 3);
        self.compare("execute_transpose_batched_gpu", flag, &out, &transposed)?;
        let flag = forward::execute_transpose_12_batched_gpu(0, from, to, 1, 2, 3, 1);
        self.compare("execute_transpose_12_batched_gpu", flag, &out, &transposed)?;
        let biased = [10.0, 21.0, 32.0, 13.0, 24.0, 35.0];
        let flag = forward::execute_broadcast_add_gpu(0, from, bias.0, to, 1, 2, 3);
        self.compare("execute_broadcast_add_gpu", flag, &out, &biased)?;
        let flag = forward::execute_add_broadcast_pe_gpu(0, from, bias.0, to, 2, 1, 3);
        self.compare("execute_add_broadcast_pe_gpu", flag, &out, &biased)?;
        let flag = forward::execute_reduce_sum_gpu(0, from, to, 2, 1, 3);
        self.compare("execute_reduce_sum_gpu", flag, &out, &[3.0, 5.0, 7.0])
    }

    fn lookups(&mut self) -> Result<()> {
        // The second id is padding.
        let (ids, w) = (self.ids(&[1, -1, 0])?, self.floats(&[1.0, 2.0, 3.0, 4.0])?);
        let out = self.room(6)?;
        let flag = forward::execute_embedding_lookup_gpu(0, ids.0, w.0, out.0, 1, 3, 2, 2);
        self.compare("execute_embedding_lookup_gpu", flag, &out, &[3.0, 4.0, 0.0, 0.0, 1.0, 2.0])?;
        let dy = self.floats(&[1.0, 2.0, 9.0, 9.0, 3.0, 4.0])?;
        let flag = backward::execute_embedding_backward_gpu(0, dy.0, ids.0, w.0, 1, 3, 2, 2);
        self.compare("execute_embedding_backward_gpu", flag, &w, &[4.0, 6.0, 4.0, 6.0])?;
        let sevenths = [1.0_f32, 2.0, 4.0, 1.0, 2.0, 4.0].map(|x| x / 7.0);
        let (x, target) = (self.floats(&sevenths.map(f32::ln))?, self.ids(&[1, -1])?);
        let sums = self.room(2)?;
        let flag = loss::execute_cross_entropy_loss_grad_gpu(0, x.0, target.0, out.0, sums.0, 1, 2, 3);
        let name = "execute_cross_entropy_loss_grad_gpu";
        self.compare(name, flag, &out, &[1.0 / 7.0, -5.0 / 7.0, 4.0 / 7.0, 0.0, 0.0, 0.0])?;
        self.compare(name, flag, &sums, &[3.5_f32.ln(), 0.0])
    }

    fn adam(&mut self) -> Result<()> {
        let (p, g) = (self.floats(&[1.0])?, self.floats(&[1.0])?);
        let (m, v) = (self.floats(&[0.0])?, self.floats(&[0.0])?);
        let flag =
            optimizer::execute_adam_update_on_gpu(0, p.0, g.0, m.0, v.0, 1, 1, 0.1, 0.9, 0.999, 0.0, 1.0);
        let name = "execute_adam_update_on_gpu";
        self.compare(name, flag, &p, &[0.9])?;
        self.compare(name, flag, &m, &[0.2])?;
        self.compare(name, flag, &v, &[0.004])
    }
}

type Product =
    extern "C" fn(c_int, *mut c_void, *mut c_void, *mut c_void, c_int, c_int, c_int, c_int) -> c_int;
type ProductBackward = extern "C" fn(
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

#[cfg(test)]
mod tests {
    use super::*;
    use netcl::device::Settings;

    #[test]
    fn every_function_with_a_kernel_is_checked() {
        let device = Device::open("sim", &Settings::from_env()).unwrap();
        let report = check(&device).unwrap();
        let declared = include_str!("../../include/netcl_driver.h");
        assert_eq!(report.functions, declared.matches("int execute_").count());
        assert!(report.builds.compiled + report.builds.loaded > 10, "{report:?}");
    }

    #[test]
    fn a_wrong_number_is_an_error_that_names_function_and_element() {
        let device = Device::open("sim", &Settings::from_env()).unwrap();
        let mut checker = Checker { device: &device, functions: BTreeSet::new() };
        let out = checker.floats(&[1.0, 2.0]).unwrap();
        let wrong = checker.compare("execute_add_on_gpu", 1, &out, &[1.0, 3.0]).unwrap_err();
        assert!(wrong.message.starts_with("execute_add_on_gpu computes 2 for element 1"), "{wrong:?}");
        let unwritten = checker.room(1).unwrap();
        assert!(checker.compare("execute_add_on_gpu", 1, &unwritten, &[0.0]).is_err());
        assert!(checker.compare("execute_add_on_gpu", 1, &out, &[1.0, 2.0]).is_ok());
        let flag = forward::execute_add_on_gpu(0, null_mut(), out.0, out.0, 1);
        let failed = checker.compare("execute_add_on_gpu", flag, &out, &[1.0]).unwrap_err();
        assert!(failed.message.starts_with("execute_add_on_gpu: "), "{failed:?}");
    }
}
