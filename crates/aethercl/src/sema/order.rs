//! The end of the analysis: every called function must have a body, and none may call itself.

use super::{Analysed, Sema};
use crate::hir::FunctionId;

impl Sema<'_> {
    /// Returns the functions with bodies, by the index used in calls; reports a missing body.
    pub(super) fn finish(mut self) -> Option<Analysed> {
        for i in 0..self.functions.len() {
            let f = &self.functions[i];
            if let (None, Some(call), false) = (&f.body, f.called, self.features.open) {
                let message = format!("function '{}' is called but does not have a body", f.name);
                self.diagnostics.error(call, message);
            }
        }
        for (id, used) in &self.externs {
            if let (Some(used), false) = (used, self.features.open) {
                let message =
                    format!("variable '{}' is used but not defined", self.globals[id.0 as usize].name);
                self.diagnostics.error(*used, message);
            }
        }
        self.refuse_recursion()?;
        if self.diagnostics.failed() {
            return None;
        }
        let bodies = self.functions.into_iter().enumerate();
        let functions = bodies.filter_map(|(at, f)| Some((FunctionId(at as u32), f.body?))).collect();
        Some(Analysed { types: self.types, functions, globals: self.globals })
    }

    /// Reports a function that calls itself, directly or indirectly.
    fn refuse_recursion(&mut self) -> Option<()> {
        let count = self.functions.len();
        // 0 not visited, 1 in progress, 2 done.
        let mut state = vec![0u8; count];
        for root in 0..count {
            if state[root] != 0 {
                continue;
            }
            state[root] = 1;
            let mut stack = vec![(root, 0usize)];
            while let Some((at, next)) = stack.last_mut() {
                let at = *at;
                let Some(&(callee, span)) = self.functions[at].calls.get(*next) else {
                    state[at] = 2;
                    stack.pop();
                    continue;
                };
                *next += 1;
                match state[callee] {
                    0 => {
                        state[callee] = 1;
                        stack.push((callee, 0));
                    }
                    1 => {
                        let message = format!(
                            "recursion is not allowed in OpenCL C: '{}' ends up calling itself",
                            self.functions[callee].name
                        );
                        return self.error(span, message);
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }
}
