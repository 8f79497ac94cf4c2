use super::axis::Axis;
use super::*;

/// Returns metrics of `n` steps that resemble a run's.
fn run(n: u64) -> Vec<StepMetrics> {
    let noise = |i: u64| ((i.wrapping_mul(2_654_435_761) >> 7) % 1000) as f64 / 1000.0 - 0.5;
    let step = |i: u64| {
        let t = i as f64 / n as f64;
        let loss = 1.55 + 2.7 * (-(12.0 * t)).exp() + 0.12 * noise(i);
        StepMetrics {
            step: i,
            elapsed: i as f64 * 0.114,
            loss,
            val_loss: i.is_multiple_of((n / 12).max(1)).then_some(loss + 0.1 * t),
            lr: 1e-3 * if t < 0.07 { t / 0.07 } else { 0.55 + 0.45 * (std::f64::consts::PI * t).cos() },
            grad_norm: 0.6 + 2.0 * (-(9.0 * t)).exp() + 0.3 * noise(i * 3),
            tokens: i * 3534,
            tokens_per_s: 31_000.0 + 2000.0 * noise(i * 7),
            flops: Some(3.1e10),
            peak_share: Some(0.5),
            memory: 61_000_000 + i.min(3) * 4_000_000,
            sample: i
                .is_multiple_of((n / 4).max(1))
                .then(|| format!("ROMEO:\nWhat <step> {i} & \"more\"?\n")),
            ..Default::default()
        }
    };
    (1..=n).map(step).collect()
}

fn kernels(n: usize) -> Vec<KernelTime> {
    let names = [
        "matmul_tile",
        "attention_bwd",
        "layer_norm_bwd_x",
        "adamw",
        "a_kernel_with_a_name_longer_than_the_page_has_room",
    ];
    let name = |i: usize| names.get(i).map_or_else(|| format!("elementwise_{i}"), |name| (*name).to_owned());
    (0..n)
        .map(|i| KernelTime {
            name: name(i),
            launches: 1500 * (i as u64 + 1),
            seconds: 60.0 / (1 + i * i) as f64,
        })
        .collect()
}

fn rows(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

/// Writes the page to the folder that `NETCL_REPORT_DIR` names, for inspection.
fn keep(name: &str, html: &str) {
    if let Some(dir) = std::env::var_os("NETCL_REPORT_DIR") {
        std::fs::write(std::path::Path::new(&dir).join(name), html).unwrap();
    }
}

/// Checks that every opened tag is closed, in order, and no number is malformed.
fn check(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = html.split_once("<body>").unwrap().1.split_once("</body>").unwrap().0;
    for tag in body.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0) {
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(
        !html.contains("NaN\"") && !html.contains("inf ") && !html.contains("NaN "),
        "a number is malformed"
    );
    assert!(!html.contains("<script") && !html.contains("http"));
}

fn full(metrics: &[StepMetrics], kernels: &[KernelTime]) -> String {
    let tables = [
        ("Model", rows(&[("Parameters", "809,856"), ("Layers", "4"), ("Width", "128")])),
        (
            "Device",
            rows(&[
                ("Name", "pthread-AMD EPYC <7763>"),
                ("Platform", "Portable Computing Language"),
                ("Driver", "3.1"),
            ]),
        ),
        (
            "Configuration",
            rows(&[("lr", "0.001"), ("data", "corpora/tinyshakespeare.txt"), ("seed", "1337")]),
        ),
    ];
    let status = "Finished after 1,500 steps.";
    Report { title: "demo-1", status, metrics, kernels, tables: &tables, ..Report::default() }.html()
}

#[test]
fn a_run_is_shown_whole() {
    let html = full(&run(1500), &kernels(24));
    keep("run.html", &html);
    check(&html);
    for part in [
        "Best validation loss",
        "training, smoothed",
        "validation",
        "What &lt;step&gt; 1500 &amp; &quot;more&quot;?",
        "EPYC &lt;7763&gt;",
        "10 others",
        "matmul_tile",
        "×10⁻³",
        "MiB",
        "thousands",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<details open>").count(), 1);
}

#[test]
fn the_speed_of_the_page_is_tokens_over_time() {
    // Steps as the host receives them: two at once, so that every second one seems to take no time.
    let mut metrics = run(400);
    for m in &mut metrics {
        m.tokens = m.step * 1000;
        m.elapsed = (m.step / 2 * 2 + 2) as f64 * 0.1;
        (m.tokens_per_s, m.peak_share) =
            if m.step.is_multiple_of(2) { (5_000.0, Some(0.2)) } else { (1e9, Some(40_000.0)) };
    }
    let html = full(&metrics, &[]);
    keep("speed.html", &html);
    let tile = html.split("<span>Tokens per second</span>").nth(1).unwrap().split("</div>").next().unwrap();
    // 400,000 tokens in 40.2 s; the last step's share of the peak is scaled with its speed.
    assert!(tile.contains("<b>9.95k</b>") && tile.contains("whole run, 39.8 % of peak"), "{tile}");
    let chart =
        html.split("aria-label=\"Tokens per second\"").nth(1).unwrap().split("</svg>").next().unwrap();
    assert!(chart.contains("thousands") && !chart.contains("millions"), "{chart}");
    assert!(!chart.contains("highest, not shown"), "no spikes");
}

#[test]
fn few_and_broken_numbers_are_no_problem() {
    let one = full(&run(1), &kernels(1));
    keep("one.html", &one);
    check(&one);
    assert_eq!(one.matches("h0\"/>").count(), 2 * 6, "each single point is drawn, on either screen");
    check(&full(&[], &[]));
    assert!(full(&[], &[]).contains("no values"));
    let mut broken = run(300);
    broken[100..150].iter_mut().for_each(|m| m.loss = f64::NAN);
    broken[20].grad_norm = 1e9;
    broken[30].grad_norm = f64::INFINITY;
    broken.iter_mut().for_each(|m| m.lr = 0.0);
    broken[299].loss = f64::NAN;
    broken[299].val_loss = Some(f64::NAN);
    let html = full(&broken, &kernels(3));
    keep("broken.html", &html);
    check(&html);
    assert!(html.contains("highest, not shown: 1G"));
}

#[test]
fn long_runs_stay_small() {
    let html = full(&run(100_000), &[]);
    keep("long.html", &html);
    check(&html);
    assert!(html.len() < 250_000, "{} bytes", html.len());
}

#[test]
fn thinning_keeps_peaks_and_ends() {
    let mut points: Vec<_> = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
    points[54_321].1 = 9.0;
    points[60_000].1 = f64::NAN;
    let runs = Series::line("", points).runs(700);
    assert_eq!(runs.len(), 2);
    assert!(runs[0].contains(&(54_321.0, 9.0)));
    assert_eq!((runs[0][0].0, runs[1][0].0, runs[1].last().unwrap().0), (0.0, 60_001.0, 99_999.0));
    assert!(runs.iter().map(Vec::len).sum::<usize>() < 1500);
}

#[test]
fn ticks_are_round() {
    let labels = |lo, hi, want, snap| {
        let axis = Axis::new(lo, hi, want, snap);
        axis.ticks().into_iter().map(|tick| axis.label(tick)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(labels(0.0, 1.0, 5, true), "0.0 0.2 0.4 0.6 0.8 1.0");
    assert_eq!(labels(1.43, 4.22, 6, true), "1.0 1.5 2.0 2.5 3.0 3.5 4.0 4.5");
    assert_eq!(labels(1.0, 1500.0, 8, false), "200 400 600 800 1000 1200 1400");
    assert_eq!(labels(-0.3, 0.3, 3, true), "-0.4 -0.2 0.0 0.2 0.4");
    assert_eq!(labels(5.0, 5.0, 4, true), "4.5 5.0 5.5");
    assert_eq!(labels(0.0, 0.0, 4, true), "0.0 0.5 1.0");
    assert_eq!(labels(f64::NAN, 1.0, 2, true), "0.0 0.5 1.0");
    assert_eq!(AxisUnit::Power.scale(1e-3), (1e-3, "×10⁻³".into()));
    assert_eq!([6e-4, 9.9e-4].map(|max| AxisUnit::Power.scale(max).1), ["×10⁻⁴", "×10⁻³"]);
}

#[test]
fn numbers_are_for_people() {
    assert_eq!([999, 1000, 1_234_567].map(format::integer), ["999", "1,000", "1,234,567"]);
    assert_eq!([0.0, 12.0, 31_104.0, 5e7].map(format::short), ["0", "12", "31.1k", "50M"]);
    assert_eq!(
        [0.0004, 1.234, 45.0, 171.0, 3780.0, 180_000.0].map(format::duration),
        ["0.4 ms", "1.23 s", "45 s", "2 min 51 s", "1 h 3 min", "2 d 2 h"]
    );
    assert_eq!([5.0, 1536.0, 6.1e7].map(format::bytes), ["5 B", "1.5 KiB", "58.2 MiB"]);
    assert_eq!(format::escape("<a href='x'>&\u{7}"), "&lt;a href=&#39;x&#39;&gt;&amp;\u{fffd}");
}

/// The maximum width of a page on a phone of 420 pixels, without its margins.
const PHONE: f64 = 380.0;

#[test]
fn the_page_fits_a_screen_of_420_pixels() {
    let mut long = run(1500);
    long[700].loss = 1e4;
    let html = full(&long, &kernels(24));
    keep("narrow.html", &html);
    // No element has a fixed minimum width.
    for rule in html.split("min-width: ").skip(1).chain(html.split("minmax(").skip(1)) {
        let pixels = rule.split("px").next().unwrap().parse::<f64>();
        assert!(pixels.is_err() || pixels.is_ok_and(|p| p <= PHONE), "{}", &rule[..20]);
    }
    assert!(!html.contains("overflow-x"), "the page does not scroll horizontally");
    // Each chart has a drawing for narrow screens that is as wide as the screen and has room for each letter.
    let narrow: Vec<&str> = html.split("<svg class=\"").skip(1).filter(|d| d.contains(" narrow\"")).collect();
    assert_eq!((narrow.len(), html.matches(" broad\"").count()), (5, 5));
    for drawing in narrow {
        let drawing = drawing.split("</svg>").next().unwrap();
        assert!(drawing.contains(&format!("viewBox=\"0 0 {PHONE} ")), "{}", &drawing[..80]);
        for text in drawing.split("<text ").skip(1).filter(|t| !t.contains("class=\"title\"")) {
            let number = |name: &str| {
                let value = text.split_once(&format!("{name}=\"")).unwrap().1;
                value.split('"').next().unwrap().to_owned()
            };
            let letters = text.split_once('>').unwrap().1.split("</text>").next().unwrap().chars().count();
            let (x, wide): (f64, f64) = (number(" x").parse().unwrap(), letters as f64 * 6.6);
            let (from, to) = match number("anchor").as_str() {
                "start" => (x, x + wide),
                "middle" => (x - wide / 2.0, x + wide / 2.0),
                _ => (x - wide, x),
            };
            assert!(from >= 0.0 && to <= PHONE, "{from} to {to}: {text}");
        }
    }
    // Bars are boxes that share the available width.
    assert_eq!(html.matches("class=\"kernel\"").count(), 15);
    assert!(html.contains("<i style=\"width:100.0%\">"));
}

/// If experts are balanced, the two losses of a chart are sums of different terms.
#[test]
fn a_training_loss_with_the_balance_loss_is_named_so() {
    let metrics = [StepMetrics { step: 1, loss: 2.0, val_loss: Some(1.9), ..StepMetrics::default() }];
    let page = |balanced| Report { balanced, metrics: &metrics, ..Report::default() }.html();
    assert!(
        page(true).contains("training with balance loss")
            && page(true).contains("validation without balance loss")
    );
    assert!(!page(false).contains("balance loss"));
}
