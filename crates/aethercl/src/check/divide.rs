//! Integer division by zero.

use super::report::Details;
use super::{Check, FindingCollector, FindingKind, GroupContext, Whole};

/// Check for integer division by zero.
pub struct Division;

impl Check for Division {
    fn settles(&mut self, _whole: &Whole<'_>, _cx: &GroupContext<'_>) -> bool {
        true
    }

    fn divide(
        &mut self,
        pc: usize,
        divisor: &dyn Fn(usize) -> u64,
        cx: &GroupContext<'_>,
        report: &mut FindingCollector,
    ) {
        for lane in cx.mask.lanes().filter(|l| divisor(*l) == 0) {
            report.add(FindingKind::DivisionByZero, pc, || Details {
                message: "an integer is divided by 0".to_string(),
                items: vec![cx.item(lane)],
                object: String::new(),
                offset: 0,
                bytes: 0,
                values: Vec::new(),
            });
        }
    }
}
