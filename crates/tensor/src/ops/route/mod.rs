//! Routing of a sparse mixture of experts (Shazeer et al. 2017): a token's largest router logits choose its experts and their weights.

use super::MultiOp;
use super::prelude::*;
use netcl_kernel::Launch;

pub(super) static KERNEL: Kernel =
    Kernel::new("route", cl_file!("route.cl")).tune(&[("WG", &[256, 128])]).tune_cpu(&[("WG", &[1])]);

/// Maximum number of experts of a router: a row's logits and probabilities are in local memory.
pub const MAX_EXPERTS: usize = 1024;

/// Computes weights `(.., K)` and expert ids `(.., K)` u32 from logits `(.., E)`, the largest logit first, and among equal logits the lowest index
/// first. A weight is the logit's share of the softmax over all E; with `renormalise`, over the K chosen ones, so that the weights of a token add
/// up to 1. The softmax is f32. Gradients flow from the weights into the logits.
///
/// # Errors
/// `Shape` if E is below K, or K is 0; `Unsupported` for more than [`MAX_EXPERTS`]; `DType` if logits are not floats.
pub fn route(logits: &Tensor, k: usize, renormalise: bool) -> Result<(Tensor, Tensor)> {
    check_router("route", logits, k)?;
    let [weights, ids] = Route { k, renormalise }.apply([logits])?;
    Ok((weights, ids.detach()))
}

pub(super) fn check_router(op: &str, logits: &Tensor, k: usize) -> Result<()> {
    check::float(op, "logits", logits)?;
    let experts = if logits.shape().rank() == 0 { 0 } else { logits.shape().last() };
    if k == 0 || k > experts {
        return Err(Error::shape(format!(
            "{op}: logits have shape {}, expected a last axis of experts, and to choose between 1 and all of them, not {k}",
            logits.shape()
        )));
    }
    if experts > MAX_EXPERTS {
        return Err(Error::unsupported(format!(
            "{op}: {experts} experts, at most {MAX_EXPERTS} are supported"
        )));
    }
    Ok(())
}

/// Starts a launch over rows of E logits, of which K are chosen, and returns the number of rows per group.
pub(super) fn launch(entry: &'static str, x: &Tensor, k: usize) -> (Launch<'static>, usize) {
    let (device, e) = (x.device(), x.shape().last());
    let (across, high) = if device.capabilities().is_cpu() {
        (1, 1)
    } else {
        let wg = Tuning::value(device, &KERNEL, 0, "WG").min(largest_group(device));
        let across = e.next_power_of_two().min(32).min(wg);
        // Words of local memory per row: exponentials, keys, two sums and the chosen ones; half of the minimum that devices have.
        let most = (4096 / (4 * e + k)).max(1);
        (across, (wg / across).min(1 << most.ilog2()))
    };
    let launch = KERNEL.launch(entry).define("DTYPE", x.dtype().code()).define("E", e).define("K", k);
    (launch.define("X", across).define("Y", high).local([across, high, 1]), high)
}

/// Returns the work-groups for `rows` rows of E logits, `high` at a time.
pub(super) fn groups(x: &Tensor, rows: usize, high: usize) -> usize {
    row_groups(x.device(), rows.div_ceil(high), x.shape().last() * x.shape().last())
}

/// Operation of [`route()`].
#[derive(Clone)]
pub struct Route {
    pub(super) k: usize,
    pub(super) renormalise: bool,
}

impl MultiOp<1, 2> for Route {
    const NAME: &'static str = "route";
    /// The ids.
    type Saved = Tensor;
    fn forward(&self, [logits]: [&Tensor; 1]) -> Result<([Tensor; 2], Tensor)> {
        let x = logits.contiguous()?;
        let (rows, _) = x.shape().rows_cols();
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.k;
        }
        let weights = Tensor::empty(x.device(), &dims[..], x.dtype())?;
        let ids = Tensor::empty(x.device(), &dims[..], DType::U32)?;
        if rows > 0 {
            let (launch, high) = launch("route_fwd", &x, self.k);
            let launch = launch.define("RENORM", self.renormalise).groups(groups(&x, rows, high));
            launch.read(&x).write(&weights).write(&ids).scalar(rows).run()?;
        }
        Ok(([weights, ids.clone()], ids))
    }
    fn backward(
        &self,
        [logits]: [&Tensor; 1],
        ids: &Tensor,
        [dweights, _]: [Option<&Tensor>; 2],
    ) -> Result<[Option<Tensor>; 1]> {
        let Some(dweights) = dweights else { return Ok([None]) };
        let (x, dweights) = (logits.contiguous()?, dweights.contiguous()?);
        let (rows, _) = x.shape().rows_cols();
        let dlogits = Tensor::empty(x.device(), x.shape(), x.dtype())?;
        if rows > 0 {
            let (launch, high) = launch("route_bwd", &x, self.k);
            let launch = launch.define("RENORM", self.renormalise).groups(groups(&x, rows, high));
            launch.read(&x).read(ids).read(&dweights).write(&dlogits).scalar(rows).run()?;
        }
        Ok([Some(dlogits)])
    }
    fn reference(&self, [logits]: [&Array; 1]) -> [Array; 2] {
        let (mut weights, mut ids) = (Vec::new(), Vec::new());
        for row in logits.rows() {
            let (chosen, shares) = chosen(row, self.k);
            let sum: f64 = if self.renormalise { chosen.iter().map(|e| shares[*e]).sum() } else { 1.0 };
            weights.extend(chosen.iter().map(|e| shares[*e] / sum));
            ids.extend(chosen.into_iter().map(|e| e as f64));
        }
        let dims = logits.shape.dims();
        let shape = || [&dims[..dims.len() - 1], &[self.k]].concat();
        [Array::new(shape(), weights), Array::new(shape(), ids)]
    }
    fn calls() -> Vec<Call> {
        let doc = "Routing of a sparse mixture of experts: logits `(.., E)` → weights `(.., k)` and expert ids `(.., k)`, u32, the largest logit first. A \
                   weight is the logit's share of the softmax over all E, with `renormalise` over the k chosen ones.";
        let call = Call::new(Self::NAME, doc).inputs(&["logits"]).required("k", AttributeKind::Int);
        vec![call.default("renormalise", false).results(&["weights", "ids"]).run_all(|a| {
            let (weights, ids) = route(a.inputs::<1>()?[0], a.get("k")?, a.get("renormalise")?)?;
            Ok(vec![weights, ids])
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("k", self.k.into()), ("renormalise", self.renormalise.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |k, renormalise, shape: &[usize]| {
            Sample::new(Self { k, renormalise }, [SampleInput::distinct(shape)])
        };
        // Not differentiable: the choice between equal logits changes at an infinitesimal step.
        let tied = SampleInput::values(&[3, 8], &[1.0, 2.0, 2.0, -1.0, 2.0, 0.5, -0.0], Some(DType::F32));
        let far = |renormalise| {
            Sample::new(Self { k: 3, renormalise }, [SampleInput::uniform(&[5, 9], -200.0, 200.0)]).extreme()
        };
        vec![
            sample(2, true, &[3, 5, 8]).bench(&[&[4096, 1, 8]]),
            sample(3, false, &[7, 19]).bench(&[&[4096, 128]]),
            // Rows with more logits than a group has items along a row.
            sample(8, true, &[2, 70]).light(),
            Sample::new(Self { k: 2, renormalise: true }, [tied]).named("tied").light(),
            far(true).light(),
            far(false).light(),
            sample(1, false, &[1]).light(),
            sample(2, true, &[0, 4]).light(),
        ]
    }
}

/// Returns the K largest of a row in order, and the softmax of all.
pub(super) fn chosen(row: &[f64], k: usize) -> (Vec<usize>, Vec<f64>) {
    let key = |i: &usize| if row[*i].is_nan() { f64::NAN } else { row[*i] + 0.0 };
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.cmp(b)));
    order.truncate(k);
    let top = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
    let sum: f64 = row.iter().map(|v| (v - top).exp()).sum();
    (order, row.iter().map(|v| (v - top).exp() / sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use netcl_device::Settings;

    #[test]
    fn of_equal_logits_the_lowest_expert_is_chosen_and_nan_before_all() {
        for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
            let rows =
                [[1.0, 3.0, 3.0, 3.0], [0.0, -0.0, 0.0, -1.0], [f32::NEG_INFINITY, f32::NAN, 7.0, f32::NAN]];
            let logits = Tensor::from_f32(&device, [3, 4], rows.as_flattened(), DType::F32).unwrap();
            let (weights, ids) = route(&logits, 2, true).unwrap();
            assert_eq!(ids.to_u32().unwrap(), [1, 2, 0, 1, 1, 3]);
            assert!(!ids.requires_grad());
            let weights = weights.to_vec().unwrap();
            assert_eq!(weights[..4], [0.5; 4]);
            assert!(weights[4..].iter().all(|w| w.is_nan()));
        }
    }
}
