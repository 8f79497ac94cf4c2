//! Timing: netcl and the peer in turn, in several rounds, with medians. A machine that slows down meanwhile slows both.

use super::peer::Peer;
use netcl::prelude::*;
use std::time::Instant;

/// Times of one call, milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub median_ms: f64,
    /// The median time of the work timed in turn for comparison.
    pub reference_ms: Option<f64>,
    /// The peer's name, and its median.
    pub peer: Option<(String, f64)>,
    /// The implementation that the peer chose, if it has several.
    pub backend: Option<String>,
    /// The peer's shortest time of a call without the timed graph.
    pub called_ms: Option<f64>,
    /// Peak device memory of the peer in bytes, if it reports it.
    pub memory: Option<u64>,
    /// Why the peer's result is missing, if it was asked.
    pub refused: Option<String>,
}

/// Number of rounds, and duration of a timed sample.
pub struct Rounds {
    pub count: usize,
    /// Each sample has as many calls as fill this time, in milliseconds.
    pub sample_ms: f64,
}

/// Timed samples of each side per round.
pub const SAMPLES: usize = 3;
/// Time in which clocks, caches and allocators settle first, in milliseconds.
const WARM_MS: f64 = 50.0;

impl Rounds {
    /// Measures both sides, and the comparison if there is one. A peer that refuses is left out and causes no error.
    pub fn measure(
        &self,
        device: &Device,
        run: &mut dyn FnMut() -> Result<()>,
        mut peer: Option<(&mut Peer, serde_json::Value)>,
        mut beside: Option<&mut dyn FnMut() -> Result<()>>,
    ) -> Result<Times> {
        let others = beside.as_mut().map_or(Ok(0), |beside| warm(device, beside, self.sample_ms))?;
        let calls = warm(device, run, self.sample_ms)?;
        if let Some((_, request)) = &mut peer {
            request["min_ms"] = self.sample_ms.into();
        }
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        let mut others_ms = Vec::new();
        let mut times = Times::default();
        for _ in 0..self.count {
            if let Some((p, request)) = &mut peer {
                match p.ask(request, SAMPLES)? {
                    Ok(reply) => {
                        theirs.extend(reply.samples_ms);
                        times.peer = Some((reply.peer, 0.0));
                        times.backend = reply.backend;
                        let least =
                            reply.called_ms.map(|ms| times.called_ms.map_or(ms, |least: f64| least.min(ms)));
                        times.called_ms = least.or(times.called_ms);
                        times.memory = reply.memory;
                    }
                    Err(why) => {
                        times.refused = Some(why);
                        peer = None;
                    }
                }
            }
            for _ in 0..SAMPLES {
                ours.push(sample(device, run, calls)?);
                if let Some(beside) = &mut beside {
                    others_ms.push(sample(device, beside, others)?);
                }
            }
        }
        times.median_ms = median(&mut ours);
        times.reference_ms = beside.map(|_| median(&mut others_ms));
        if let Some((_, ms)) = &mut times.peer {
            *ms = median(&mut theirs);
        }
        Ok(times)
    }
}

/// Runs until warm; returns the number of calls per sample.
fn warm(device: &Device, run: &mut dyn FnMut() -> Result<()>, sample_ms: f64) -> Result<usize> {
    let (mut spent, mut times) = (0.0, Vec::new());
    while times.len() < 3 || (spent < WARM_MS && times.len() < 200) {
        let one = sample(device, run, 1)?;
        spent += one;
        times.push(one);
    }
    Ok(calls_of(&times, sample_ms))
}

/// Returns the calls that fill a sample, from the times of single ones. The later half is warm; its median ignores an outlier.
fn calls_of(times: &[f64], sample_ms: f64) -> usize {
    let usual = median(&mut times[times.len() / 2..].to_vec());
    (sample_ms / usual.max(1e-4)).ceil().clamp(1.0, 10_000.0) as usize
}

/// Returns the milliseconds of one call over `calls` calls.
fn sample(device: &Device, run: &mut dyn FnMut() -> Result<()>, calls: usize) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..calls {
        run()?;
    }
    device.finish()?;
    Ok(started.elapsed().as_secs_f64() * 1e3 / calls as f64)
}

/// Returns the median; for an even number of values, the mean of the middle two; 0 for no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values {
        [] => 0.0,
        v if v.len() % 2 == 1 => v[v.len() / 2],
        v => (v[v.len() / 2 - 1] + v[v.len() / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_does_not_decide_how_many_calls_a_sample_has() {
        assert_eq!(calls_of(&[50.0, 1.0, 1.0, 1.0, 80.0], 10.0), 10);
        assert_eq!(calls_of(&[80.0, 2.0, 2.0], 10.0), 5);
        assert_eq!(calls_of(&[1e-9; 4], 1e9), 10_000);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }
}
