//! Tests the precedence of stored results, and which results are ignored.

use super::*;
use crate::kernel::Kernel;
use crate::tune::Tuning;
use netcl_device::null::NullDriver;
use netcl_device::{Device, DeviceKind};

static KERNEL: Kernel = Kernel::new("store_test", "__kernel void f(__global float *x) { x[0] = 1; }")
    .tune(&[("WG", &[64, 128, 256, 512])]);

fn capabilities(name: &str, vendor: &str) -> Capabilities {
    let mut c = Capabilities::floor("gpu:0", DeviceKind::Gpu);
    (c.name, c.vendor) = (name.into(), vendor.into());
    c.max_group = 1024;
    c
}

fn record(wg: i64, text: Option<&str>) -> Record {
    let params = |wg| Params::from([("WG".to_owned(), wg)]);
    Record {
        kernel: KERNEL.name.into(),
        bucket: 0,
        case: "test".into(),
        chosen: params(wg),
        default: params(64),
        speedup: 1.5,
        text: text.map(Into::into),
        measurements: vec![Measurement { params: params(wg), median_us: Some(1.0), status: "ok".into() }],
    }
}

fn shipped(name: &str, vendor: &str, record: Record) -> String {
    let c = capabilities(name, vendor);
    let shelf = Shelf {
        vendor: slug(vendor),
        architecture: architecture(&c),
        device: slug(name),
        driver: "1".into(),
        records: vec![record],
        models: Models::new(),
    };
    serde_json::to_string(&[shelf]).unwrap()
}

fn cached(folder: &Path) -> Settings {
    Settings { cache_dir: Some(folder.into()), ..Settings::default() }
}

fn choice(store: &Store, text: &str) -> Option<(i64, Origin)> {
    store.choice(KERNEL.name, 0, text).map(|(params, origin)| (params["WG"], origin))
}

#[test]
fn own_results_go_before_shipped_ones_and_those_before_related_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, here) = (cached(folder.path()), capabilities("Card One", "Maker"));
    let of_maker = shipped("Card One", "Maker", record(128, None));
    let open = || Store::with(&settings, &here, &of_maker);
    assert_eq!(choice(&Store::with(&settings, &here, "[]"), "t"), None);
    assert_eq!(choice(&open(), "t"), Some((128, Origin::Shipped)));
    // Another card of the same vendor was tuned here: the shipped result for this exact card is closer.
    let other = Store::with(&settings, &capabilities("Card Two", "Maker"), "[]");
    other.put(record(256, None)).unwrap();
    assert_eq!(choice(&open(), "t"), Some((128, Origin::Shipped)));
    // A shipped result for a third card is not closer, so the local measurement wins.
    let of_third = shipped("Card Three", "Maker", record(128, None));
    assert_eq!(choice(&Store::with(&settings, &here, &of_third), "t"), Some((256, Origin::Related)));
    open().put(record(512, None)).unwrap();
    assert_eq!(choice(&open(), "t"), Some((512, Origin::Tuned)));
    let all: Vec<Origin> = open().all().into_iter().map(|(origin, _)| origin).collect();
    assert_eq!(all, [Origin::Tuned], "one line per kernel and class of shapes");
}

#[test]
fn results_for_unknown_devices_and_of_other_texts_do_not_count() {
    let here = capabilities("Card One", "Maker");
    let of = |maker: &str, text| shipped("Card One", maker, record(128, text));
    let open = |shipped: &str| Store::with(&Settings::default(), &here, shipped);
    assert_eq!(choice(&open(&of("Somebody Else", None)), "t"), None);
    assert_eq!(choice(&open(&of("Maker", Some("t"))), "t"), Some((128, Origin::Shipped)));
    assert_eq!(choice(&open(&of("Maker", Some("t"))), "edited"), None);
    assert_eq!(choice(&open("not json"), "t"), None);
}

/// A local result for an earlier kernel source does not hide a shipped one for the present source.
#[test]
fn a_stale_result_gives_way() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, here) = (cached(folder.path()), capabilities("Card One", "Maker"));
    let of_maker = shipped("Card One", "Maker", record(128, Some("new")));
    Store::with(&settings, &here, &of_maker).put(record(512, Some("old"))).unwrap();
    let store = Store::with(&settings, &here, &of_maker);
    assert_eq!(choice(&store, "new"), Some((128, Origin::Shipped)));
    assert_eq!(choice(&store, "old"), Some((512, Origin::Tuned)));
}

#[test]
fn launches_follow_their_own_text_and_say_where_the_value_is_from() {
    for (text, expected) in [
        (Some(KERNEL.fingerprint()), (256, Origin::Tuned)),
        (Some("another text".into()), (64, Origin::Default)),
        (None, (256, Origin::Tuned)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (settings, here) = (cached(folder.path()), capabilities("Card One", "Maker"));
        Store::open(&settings, &here).put(record(256, text.as_deref())).unwrap();
        let device = Device::from_driver(Box::new(NullDriver::new(here)), settings);
        let wg = Tuning::value(&device, &KERNEL, 0, "WG") as i64;
        assert_eq!(
            (wg, Tuning::of(&device).origins()),
            (expected.0, vec![(KERNEL.name, 0, expected.1)]),
            "{text:?}"
        );
    }
}

/// Ignores a choice that a related device stored if it is missing from this device's candidates.
#[test]
fn values_that_this_device_is_not_offered_are_left() {
    let folder = tempfile::tempdir().unwrap();
    let settings = cached(folder.path());
    Store::open(&settings, &capabilities("Card Two", "Maker")).put(record(333, None)).unwrap();
    let device = Device::from_driver(Box::new(NullDriver::new(capabilities("Card One", "Maker"))), settings);
    assert_eq!(Tuning::value(&device, &KERNEL, 0, "WG"), 64);
    assert_eq!(Tuning::of(&device).origins(), [(KERNEL.name, 0, Origin::Default)]);
}

#[test]
fn an_export_adds_this_device_without_measurements_and_keeps_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (file, settings) = (folder.path().join("out.json"), cached(&folder.path().join("cache")));
    let (one, two) = (capabilities("Card One", "Maker"), capabilities("Card Two", "Maker"));
    Store::open(&settings, &one).put(record(128, Some("t"))).unwrap();
    let noise = Record { bucket: 1, speedup: 1.01, ..record(128, None) };
    let store = Store::open(&settings, &one);
    store.put(noise).unwrap();
    assert_eq!(store.export(&file).unwrap(), [1, 1], "a gain of 1 % is noise");
    let second = Store::open(&settings, &two);
    second.put(record(256, Some("t"))).unwrap();
    assert_eq!(second.export(&file).unwrap(), [1, 0]);
    assert_eq!(store.export(&file).unwrap(), [1, 1], "a second export replaces the first");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("measurements"), "{text}");
    let elsewhere = Settings::default();
    assert_eq!(choice(&Store::with(&elsewhere, &one, &text), "t"), Some((128, Origin::Shipped)));
    assert_eq!(choice(&Store::with(&elsewhere, &two, &text), "t"), Some((256, Origin::Shipped)));
    // If the default was fastest, the record says so, and the current default applies.
    let shipped = Store::with(&elsewhere, &one, &text);
    assert!(shipped.all().iter().any(|(_, r)| r.bucket == 1 && r.chosen == r.default && r.speedup == 1.0));
    assert_eq!(shipped.choice(KERNEL.name, 1, "t"), None);
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(store.export(&file).unwrap_err().kind(), netcl_device::ErrorKind::Format);
}

#[test]
fn what_ships_can_be_read() {
    let shelves: Vec<Shelf> = serde_json::from_str(SHIPPED).unwrap();
    for shelf in shelves {
        assert_eq!(shelf.vendor, slug(&shelf.vendor));
        assert_eq!(shelf.device, slug(&shelf.device));
        assert!(
            !shelf.records.is_empty() && shelf.records.iter().all(|r| r.text.is_some()),
            "{}",
            shelf.device
        );
    }
}

/// Results that another process stored after this one opened the file are kept (they used to be overwritten).
#[test]
fn two_programs_that_tune_at_one_time_keep_each_others_results() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let device = capabilities("Card 9", "Vendor");
    let stores: Vec<Store> = (0..4).map(|_| Store::with(&settings, &device, "[]")).collect();
    std::thread::scope(|scope| {
        for (i, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                for bucket in 0..20 {
                    store.put(Record { bucket: bucket * 4 + i as u64, ..record(128, None) }).unwrap();
                }
            });
        }
    });
    let later = Store::with(&settings, &device, "[]");
    assert_eq!(later.records().len(), 80);
    // A new measurement replaces the earlier one.
    stores[0].put(Record { bucket: 1, ..record(256, None) }).unwrap();
    let chosen = |s: &Store| s.choice(KERNEL.name, 1, "").unwrap().0["WG"];
    assert_eq!((chosen(&stores[0]), chosen(&Store::with(&settings, &device, "[]"))), (256, 256));
    assert_eq!(stores[0].records().len(), 80);
}

/// Constants are looked up for the device, then for its architecture, and never for another architecture of the same vendor.
#[test]
fn constants_of_the_device_model_come_from_the_same_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let settings = cached(folder.path());
    let of = |name: &str, sm: u32| {
        let mut c = capabilities(name, "Maker");
        c.architecture = Architecture::Nvidia { sm };
        c
    };
    let models = |value: f64| Models::from([("tile".into(), [("step_us".to_owned(), value)].into())]);
    let shelf = Shelf {
        vendor: "maker".into(),
        architecture: "sm90".into(),
        models: models(0.5),
        ..Shelf::default()
    };
    let shipped = serde_json::to_string(&[shelf]).unwrap();
    let open = |name: &str, sm: u32| Store::with(&settings, &of(name, sm), &shipped);
    assert_eq!(open("Card One", 90).constant("tile", "step_us"), Some((0.5, Origin::Shipped)));
    assert_eq!(open("Card One", 80).constant("tile", "step_us"), None);
    assert_eq!(open("Card One", 90).constant("tile", "other"), None);
    // A local measurement is added to the tuned results: neither replaces the other.
    let own = open("Card One", 90);
    own.put(record(256, None)).unwrap();
    own.put_models(models(0.25)).unwrap();
    own.put_models(Models::from([("other".into(), Default::default())])).unwrap();
    let again = open("Card One", 90);
    assert_eq!(again.constant("tile", "step_us"), Some((0.25, Origin::Tuned)));
    assert_eq!(choice(&again, "t"), Some((256, Origin::Tuned)));
    assert_eq!(open("Card Two", 90).constant("tile", "step_us"), Some((0.25, Origin::Related)));
    // Every constant is positive: some estimates divide by constants.
    own.put_models(models(-1.0)).unwrap();
    assert_eq!(open("Card One", 90).constant("tile", "step_us"), None);
}
