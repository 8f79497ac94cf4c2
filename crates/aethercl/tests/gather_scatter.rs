//! Loads and stores of words, lane by lane in Rust and all at once in a kernel. They cover every kind of index, memory and
//! vector, adjacent and scattered active lanes, and addresses inside and outside buffers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use aethercl::{Access, Arg, Includes, LaunchOptions, Memory, NdRange, Program, Source};

/// Work-items of the single group.
const ITEMS: usize = 96;
/// Words of each buffer.
const WORDS: usize = 512;

/// Source and destination of a lane's elements.
#[derive(Clone, Copy, Debug)]
struct Form {
    index: &'static str,
    /// Pointer of the loads.
    from: &'static str,
    elements: usize,
    /// Active lanes.
    runs: &'static str,
}

fn text(f: Form) -> String {
    let vector = if f.elements == 1 { String::new() } else { f.elements.to_string() };
    let Form { index, from, runs, .. } = f;
    format!(
        "__constant uint table[{WORDS}] = {{ {table} }};
         __kernel void move(__global const {index} *at, __global const uint *a, __global const uint *other, __global uint *b, __global uint *own) {{
           __local uint near[{WORDS}];
           const int lane = get_local_id(0);
           for (int i = lane; i < {WORDS}; i += {ITEMS}) near[i] = a[i];
           barrier(CLK_LOCAL_MEM_FENCE);
           const {index} n = at[lane];
           if ({runs}) {{
             const uint{vector} v = *({space} const uint{vector} *)({from} + n) + (uint)lane;
             *(__global uint{vector} *)(b + n) = v;
             *(__local uint{vector} *)(near + n) = v * 3u;
           }}
           barrier(CLK_LOCAL_MEM_FENCE);
           for (int i = lane; i < {WORDS}; i += {ITEMS}) own[i] = near[i];
         }}",
        table = (0..WORDS).map(|i| (i * 7).to_string()).collect::<Vec<_>>().join(", "),
        space = match from {
            "near" => "__local",
            "table" => "__constant",
            _ => "__global",
        },
    )
}

fn lane_runs(f: Form, lane: usize) -> bool {
    match f.runs {
        "lane % 3 == 1" => lane % 3 == 1,
        "lane >= 17 && lane < 71" => (17..71).contains(&lane),
        "lane == 40" => lane == 40,
        _ => true,
    }
}

/// Returns buffers `b` and `own` after the kernel.
fn expected(f: Form, at: &[i64], a: &[u32], other: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (mut b, mut own) = (vec![9; WORDS], a.to_vec());
    let lanes = || (0..ITEMS).filter(|l| lane_runs(f, *l));
    let word = |lane: usize, n: i64| {
        let i = usize::try_from(n).ok().filter(|i| *i < WORDS);
        match f.from {
            "table" => i.map_or(0, |i| i as u32 * 7),
            "(lane & 1 ? a : other)" if lane & 1 == 0 => i.map_or(0, |i| other[i]),
            _ => i.map_or(0, |i| a[i]),
        }
    };
    let loaded: Vec<(i64, u32, usize)> = lanes()
        .flat_map(|l| (0..f.elements).map(move |e| (l, e)))
        .map(|(l, e)| (at[l] + e as i64, word(l, at[l] + e as i64).wrapping_add(l as u32), l))
        .collect();
    for (n, v, _) in loaded {
        if let Some(i) = usize::try_from(n).ok().filter(|i| *i < WORDS) {
            b[i] = v;
            own[i] = v.wrapping_mul(3);
        }
    }
    (b, own)
}

/// Returns indices far enough apart that no two lanes share a word.
fn patterns(elements: usize, signed: bool) -> Vec<Vec<i64>> {
    let n = elements as i64;
    let lanes = || 0..ITEMS as i64;
    let mut out: Vec<Vec<i64>> = vec![
        lanes().collect::<Vec<_>>().iter().map(|l| l * n).collect(),
        lanes().map(|l| (ITEMS as i64 - 1 - l) * n).collect(),
        lanes().map(|l| (l * 37 % ITEMS as i64) * n).collect(),
        // The last words, and some words past the end.
        lanes().map(|l| WORDS as i64 - n * ITEMS as i64 + l * n).collect(),
        lanes().map(|l| WORDS as i64 - n * ITEMS as i64 + l * n + n * 3 - 1).collect(),
        // One lane accesses an address far away.
        lanes().map(|l| if l == 40 { 1 << 29 } else { l * n }).collect(),
    ];
    if signed {
        out.push(lanes().map(|l| l * n - n * 2 + 1).collect());
    }
    out
}

fn upload(memory: &Memory, words: &[u32]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = memory.allocate(bytes.len() as u64, "words").unwrap();
    memory.write(at, &bytes).unwrap();
    at
}

fn download(memory: &Memory, at: u64) -> Vec<u32> {
    let mut bytes = vec![0; WORDS * 4];
    memory.read(at, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn check(f: Form) {
    let source = text(f);
    let program = Program::build(&Source { name: "move.cl", text: &source }, "", &Includes::none())
        .unwrap_or_else(|e| panic!("{}", e.log));
    for at in patterns(f.elements, !f.index.starts_with('u')) {
        let memory = Memory::new(1 << 20);
        let a: Vec<u32> = (0..WORDS as u32).map(|i| i * 11 + 5).collect();
        let other: Vec<u32> = (0..WORDS as u32).map(|i| i * 13 + 100_000).collect();
        let index: Vec<u32> = match f.index {
            "long" | "ulong" => at.iter().flat_map(|i| [*i as u32, (*i >> 32) as u32]).collect(),
            _ => at.iter().map(|i| *i as u32).collect(),
        };
        let buffers = [upload(&memory, &index), upload(&memory, &a), upload(&memory, &other)];
        let results = [upload(&memory, &vec![9; WORDS]), upload(&memory, &vec![0; WORDS])];
        let bytes = WORDS as u64 * 4;
        let mut args: Vec<Arg<'_>> =
            buffers.iter().map(|b| Arg::Buffer { address: *b, bytes, access: Access::Read }).collect();
        args[0] = Arg::Buffer { address: buffers[0], bytes: index.len() as u64 * 4, access: Access::Read };
        args.extend(results.iter().map(|b| Arg::Buffer { address: *b, bytes, access: Access::Write }));
        let range = NdRange::line(ITEMS as u64, ITEMS as u64);
        program.launch(&memory, "move", &args, range, &LaunchOptions::default()).unwrap();
        let (b, own) = expected(f, &at, &a, &other);
        assert_eq!(download(&memory, results[0]), b, "global: {f:?} {at:?}");
        assert_eq!(download(&memory, results[1]), own, "local: {f:?} {at:?}");
    }
}

#[test]
fn every_lane_loads_and_stores_its_own_words() {
    for index in ["int", "uint", "long", "ulong"] {
        for from in ["a", "near", "table", "(lane & 1 ? a : other)"] {
            for elements in [1, 2, 4] {
                for runs in ["1", "lane % 3 == 1", "lane >= 17 && lane < 71", "lane == 40"] {
                    check(Form { index, from, elements, runs });
                }
            }
        }
    }
}
