//! The driver of the guide's chapter: it computes, wraps around its ring many times, and matches the chapter's listing.
#![allow(clippy::unwrap_used)] // tests

#[allow(dead_code)]
#[path = "../examples/driver.rs"]
mod driver;

#[test]
fn it_multiplies_also_after_many_rounds_of_the_ring() {
    let numbers: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let product = |times| driver::multiply(&numbers[..20], &numbers, [5, 4, 6], times).unwrap();
    let wanted: Vec<f32> =
        (0..30).map(|i| (0..4).map(|l| numbers[i / 6 * 4 + l] * numbers[l * 6 + i % 6]).sum()).collect();
    assert_eq!(product(1), wanted);
    // A round uses 34 of the 4096 words.
    assert_eq!(product(500), wanted);
}

#[test]
fn the_chapter_has_it_as_it_is() {
    let chapter = include_str!("../../../docs/aethercl.md");
    let text = include_str!("../examples/driver.rs");
    let begin = text.find("struct Driver").unwrap();
    let end = text.find("const KERNEL").unwrap();
    let quoted = format!("```rust\n{}\n```", text[begin..end].trim_end());
    assert!(chapter.contains(&quoted), "docs/aethercl.md does not have this:\n{quoted}");
    assert!(text[begin..end].trim().lines().count() <= 70);
}
