//! Barriers that not all work-items of a group reach.

use super::report::Details;
use super::{Check, FindingCollector, FindingKind, GroupContext, Whole};

/// Check for barriers that some work-items do not reach.
pub struct Barriers;

impl Check for Barriers {
    fn settles(&mut self, _whole: &Whole<'_>, _cx: &GroupContext<'_>) -> bool {
        true
    }

    fn collective(&mut self, pc: usize, same: bool, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        if !same {
            report.add(FindingKind::DivergentBarrier, pc, || Details {
                message: "work-items pass different operands to an operation of the whole group".to_string(),
                items: cx.mask.lanes().next().map(|l| cx.item(l)).into_iter().collect(),
                object: String::new(),
                offset: 0,
                bytes: 0,
                values: Vec::new(),
            });
        }
        self.barrier(pc, 0, cx, report);
    }

    fn barrier(&mut self, pc: usize, _flags: u32, cx: &GroupContext<'_>, report: &mut FindingCollector) {
        let items = cx.size.iter().product::<u64>() as usize;
        if cx.mask.count() == items || cx.mask.is_empty() {
            return;
        }
        report.add(FindingKind::DivergentBarrier, pc, || {
            let here = cx.mask.lanes().next().unwrap_or(0);
            let missing = (0..items).find(|l| !cx.mask.has(*l)).unwrap_or(0);
            let message = format!(
                "{} of {items} work-items of the group arrive here together; the first that does not is local {:?}",
                cx.mask.count(),
                cx.item(missing).local
            );
            let items = vec![cx.item(here), cx.item(missing)];
            Details { message, items, object: String::new(), offset: 0, bytes: 0, values: Vec::new() }
        });
    }
}
