//! Variants that failed their self-test or are disabled are not chosen again; another driver or source resets this.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl_device::null::NullDriver;
use netcl_device::{Capabilities, Device, DeviceKind, Settings};
use netcl_kernel::tune::{Params, Suspect, Tuning};
use netcl_kernel::{Kernel, Variants};

static FAST: Kernel = Kernel::new("job_fast", "__kernel void job(__global float *x) { x[0] = 1; }");
static PLAIN: Kernel = Kernel::new("job_plain", "__kernel void job(__global float *x) { x[0] = 2; }")
    .tune(&[("WG", &[64, 128, 256])]);
static JOB: Variants = Variants::new("job", &[&FAST, &PLAIN]);
static NOWHERE: Kernel = Kernel::new("job_nowhere", "").requires(|c| c.sm() > Some(9000));
static NONE: Variants = Variants::new("none", &[&NOWHERE]);

fn device(settings: &Settings, driver_version: &str) -> Device {
    let mut capabilities = Capabilities::floor("gpu:0", DeviceKind::Gpu);
    capabilities.driver_version = driver_version.into();
    Device::from_driver(Box::new(NullDriver::new(capabilities)), settings.clone())
}

fn chosen(device: &Device) -> &'static str {
    JOB.choose(device, 0).unwrap().name
}

fn suspect(kernel: &Kernel, params: Option<Params>) -> Suspect {
    let (kernel, text) = (kernel.name.into(), Some(kernel.fingerprint()));
    Suspect { kernel, params, text, why: "test".into(), ..Suspect::default() }
}

#[test]
fn a_suspect_is_avoided_by_later_runs_with_the_same_driver() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let first = device(&settings, "1");
    assert_eq!(chosen(&first), "job_fast");
    let quarantine = Tuning::of(&first);
    quarantine.quarantine().replace(vec![suspect(&FAST, None)]);
    quarantine.quarantine().save().unwrap();
    quarantine.refresh();
    assert_eq!(chosen(&first), "job_plain");
    let later = device(&settings, "1");
    assert_eq!(chosen(&later), "job_plain");
    assert_eq!(chosen(&device(&settings, "2")), "job_fast");

    let healthy = Tuning::of(&later);
    healthy.quarantine().replace(Vec::new());
    healthy.quarantine().save().unwrap();
    assert_eq!(chosen(&device(&settings, "1")), "job_fast");
}

#[test]
fn another_text_is_tried_again_and_the_last_variant_is_kept() {
    let device = device(&Settings::default(), "1");
    let tuning = Tuning::of(&device);
    let old = Suspect { text: Some("another text".into()), ..suspect(&FAST, None) };
    tuning.quarantine().replace(vec![old]);
    assert_eq!(chosen(&device), "job_fast");
    tuning.quarantine().replace(vec![suspect(&FAST, None), suspect(&PLAIN, None)]);
    tuning.refresh();
    assert_eq!(chosen(&device), "job_plain");
}

#[test]
fn disabled_variants_and_tried_ones() {
    let device = device(&Settings { disable: vec!["job_fast".into()], ..Settings::default() }, "1");
    assert_eq!(chosen(&device), "job_plain");
    let tuning = Tuning::of(&device);
    let names: Vec<Params> = tuning.candidates("job");
    assert_eq!(names, [Params::from([("job_fast".into(), 1)]), Params::from([("job_plain".into(), 1)])]);
    tuning.try_out("job", 0, Some(names[0].clone()));
    assert_eq!(chosen(&device), "job_fast");
    tuning.try_out("job", 0, None);
    assert_eq!(chosen(&device), "job_plain");
    assert_eq!(JOB.choose_where(&device, 1, |k| k.name == "job_plain").unwrap().name, "job_plain");
    let message = NONE.choose(&device, 0).map(|k| k.name).unwrap_err().to_string();
    assert!(message.contains("none of its variants (job_nowhere) supports this shape on gpu:0"), "{message}");
}

#[test]
fn wrong_parameters_give_way_to_the_next() {
    let device = device(&Settings::default(), "1");
    let tuning = Tuning::of(&device);
    let wg = || Tuning::value(&device, &PLAIN, 0, "WG");
    assert_eq!(wg(), 64);
    tuning.quarantine().replace(vec![suspect(&PLAIN, Some(Params::from([("WG".into(), 64)])))]);
    tuning.refresh();
    assert_eq!(wg(), 128);
}

#[test]
fn a_damaged_file_counts_as_empty() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let tuning = Tuning::of(&device(&settings, "1"));
    let path = tuning.quarantine().path().unwrap();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "{ not json").unwrap();
    assert_eq!(chosen(&device(&settings, "1")), "job_fast");
}

/// Each program used to write all of its entries, and so deleted the entries that another one had added since.
#[test]
fn two_programs_keep_each_others_suspects() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let names: Vec<&str> = vec!["a", "b", "c", "d"];
    let programs: Vec<_> = names.iter().map(|_| device(&settings, "1")).collect();
    // Both stores open the file before either writes.
    let tunings: Vec<_> = programs.iter().map(Tuning::of).collect();
    std::thread::scope(|scope| {
        for (tuning, name) in tunings.iter().zip(&names) {
            scope.spawn(move || {
                for turn in 0..10 {
                    let mut held = tuning.quarantine().suspects();
                    held.push(Suspect {
                        kernel: format!("{name}{turn}"),
                        why: "test".into(),
                        ..Suspect::default()
                    });
                    tuning.quarantine().replace(held);
                    tuning.quarantine().save().unwrap();
                }
            });
        }
    });
    let later = Tuning::of(&device(&settings, "1"));
    assert_eq!(later.quarantine().suspects().len(), 40);
    // A program tests a variant again and finds it healthy. Another program that still has the entry must not bring it back.
    later.quarantine().replace(Vec::new());
    later.quarantine().save().unwrap();
    let path = later.quarantine().path().unwrap().to_owned();
    assert!(!path.exists());
    assert!(tunings[0].proven(&programs[0], &FAST, || Ok(())));
    assert!(!path.exists(), "{}", std::fs::read_to_string(&path).unwrap_or_default());
}

/// A self-test starts with an empty quarantine. The first variant that passed during it used to bring the old file back into memory, so the remaining
/// quarantined variants were not tested.
#[test]
fn a_self_test_is_not_told_what_failed_before_and_a_stopped_one_releases_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let failed = device(&settings, "1");
    Tuning::of(&failed).quarantine().replace(vec![suspect(&FAST, None)]);
    Tuning::of(&failed).quarantine().save().unwrap();

    let testing = device(&settings, "1");
    let tuning = Tuning::of(&testing);
    tuning.quarantine().replace(Vec::new());
    tuning.refresh();
    assert!(tuning.proven(&testing, &PLAIN, || Ok(())));
    assert_eq!(tuning.quarantine().suspects(), []);
    assert_eq!(chosen(&testing), "job_fast", "it is tested again");
    // An interruption at this point has released nothing.
    assert_eq!(chosen(&device(&settings, "1")), "job_plain");
    // Entries that another program adds meanwhile also apply here.
    let other = device(&settings, "1");
    assert!(!Tuning::of(&other).proven(&other, &NOWHERE, || Err(netcl_device::Error::launch("wrong"))));
    tuning.retire(&testing, &PLAIN, "wrong");
    let names = |t: &Tuning| t.quarantine().suspects().into_iter().map(|s| s.kernel).collect::<Vec<_>>();
    assert_eq!(names(&tuning), ["job_nowhere", "job_plain"]);
    // After completion, the file contains the findings.
    tuning.quarantine().save().unwrap();
    assert_eq!(names(&Tuning::of(&device(&settings, "1"))), ["job_nowhere", "job_plain"]);
}

/// Another process tests a variant while this one runs its self-test. Its mark is neither kept here nor written back after its removal.
#[test]
fn a_test_of_another_process_leaves_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let (doctor, other) = (device(&settings, "1"), device(&settings, "1"));
    let (tuning, theirs) = (Tuning::of(&doctor), Tuning::of(&other));
    assert!(theirs.proven(&other, &FAST, || {
        assert!(tuning.proven(&doctor, &PLAIN, || Ok(())));
        assert_eq!(tuning.quarantine().suspects(), []);
        // A self-test that ends now keeps its findings and the other process's mark.
        tuning.quarantine().save().unwrap();
        let left = Tuning::of(&device(&settings, "1")).quarantine().suspects();
        assert!(left.len() == 1 && left[0].is_under_way() && !left[0].is_avoided(), "{left:?}");
        Ok(())
    }));
    tuning.quarantine().save().unwrap();
    assert_eq!(Tuning::of(&device(&settings, "1")).quarantine().suspects(), []);
}

/// Compares start times, because the system reuses process ids, and in a container every first process has id 1.
#[test]
fn a_process_number_that_is_in_use_again_is_not_the_program_that_ended() {
    let me = std::process::id();
    let Some(started) = netcl_device::files::started(me) else { return };
    let mine = Suspect { unfinished: 2, process: Some(me), started: Some(started), ..Suspect::default() };
    assert_eq!(mine.ended(), 1, "it still runs");
    assert_eq!(
        Suspect { started: Some(started + 1), ..mine.clone() }.ended(),
        2,
        "another program of this number"
    );
    assert_eq!(Suspect { process: Some(u32::MAX), ..mine }.ended(), 2, "no program of this number");
}

/// While the test runs, the variant is marked on disk: a second program that ends meanwhile leaves it in quarantine.
#[test]
fn a_variant_proves_itself_once_and_is_released_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let (here, mut runs) = (device(&settings, "1"), 0);
    let tuning = Tuning::of(&here);
    let mut ask = || {
        tuning.proven(&here, &FAST, || {
            runs += 1;
            let left = Tuning::of(&device(&settings, "1")).quarantine().suspects();
            assert_eq!((left.len(), left[0].unfinished), (1, 1));
            assert_eq!(
                chosen(&device(&settings, "1")),
                "job_fast",
                "killed now, the next program tries again"
            );
            let twice = Suspect { unfinished: 2, ..left[0].clone() };
            let third = device(&settings, "1");
            Tuning::of(&third).quarantine().replace(vec![twice]);
            assert_eq!(chosen(&third), "job_plain", "killed twice, it is avoided");
            Ok(())
        })
    };
    assert!(ask() && ask());
    assert_eq!(runs, 1);
    assert_eq!(chosen(&device(&settings, "1")), "job_fast");
}

#[test]
fn a_variant_that_fails_its_first_test_gives_way() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
    let here = device(&settings, "1");
    let tuning = Tuning::of(&here);
    assert_eq!(chosen(&here), "job_fast");
    assert!(!tuning.proven(&here, &FAST, || Err(netcl_device::Error::launch("element 7 is 2, expected 1"))));
    assert_eq!(chosen(&here), "job_plain");
    assert!(tuning.quarantine().suspects()[0].why.contains("element 7 is 2"));
    assert_eq!(chosen(&device(&settings, "1")), "job_plain");

    let trusting = device(&Settings { trust_kernels: true, ..Settings::default() }, "1");
    let never = || -> netcl_device::Result<()> { Err(netcl_device::Error::launch("not to be run")) };
    assert!(Tuning::of(&trusting).proven(&trusting, &FAST, never));
}

/// The quarantine has a separate folder next to the cache; with storage disabled it does not exist.
#[test]
fn the_folder_can_be_another_than_the_caches() {
    let [cache, own] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let of = |cache: Option<&tempfile::TempDir>, own: Option<&tempfile::TempDir>| {
        let path = |dir: Option<&tempfile::TempDir>| dir.map(|dir| dir.path().to_owned());
        let settings = Settings { cache_dir: path(cache), quarantine_dir: path(own), ..Settings::default() };
        let tuning = Tuning::of(&device(&settings, "1"));
        tuning.quarantine().path().and_then(|path| path.parent()).map(std::path::Path::to_owned)
    };
    assert_eq!(of(Some(&cache), None), Some(cache.path().join("quarantine")));
    assert_eq!(of(Some(&cache), Some(&own)), Some(own.path().to_owned()));
    assert_eq!(of(None, Some(&own)), None);
    // Programs that cargo runs, including this test, use a folder separate from the user's.
    let settings = Settings::from_env();
    let named = std::env::var_os("NETCL_CACHE_DIR").is_some() || std::env::var_os("CARGO").is_none();
    assert!(settings.quarantine_dir.is_some() || named);
}
