//! The prompts that Stanford Alpaca's models were trained with (Taori et al. 2023): a data format, so each character counts.

const WITH_INPUT: [&str; 3] = [
    "Below is an instruction that describes a task, paired with an input that provides further context. \
     Write a response that appropriately completes the request.\n\n### Instruction:\n",
    "\n\n### Input:\n",
    "\n\n### Response:",
];
const WITHOUT_INPUT: [&str; 2] = [
    "Below is an instruction that describes a task. \
     Write a response that appropriately completes the request.\n\n### Instruction:\n",
    "\n\n### Response:",
];

/// Returns the prompt of an instruction; the response follows it directly.
pub(super) fn prompt(instruction: &str, input: &str) -> String {
    if input.is_empty() {
        let [before, after] = WITHOUT_INPUT;
        return format!("{before}{instruction}{after}");
    }
    let [before, between, after] = WITH_INPUT;
    format!("{before}{instruction}{between}{input}{after}")
}
