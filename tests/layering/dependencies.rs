//! Dependencies: checks licenses, duplicate versions and sources by the rules of deny.toml, without installing a program. `make deny` also
//! checks known vulnerabilities. Builds must use the locked versions, and workflows must reference actions by commit.

use super::{files, read, root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Returns the rules, and every package in the lock file.
fn asked() -> (toml::Table, Vec<Value>) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = ["metadata", "--format-version=1", "--all-features", "--locked", "--offline"];
    let out = Command::new(cargo).args(arguments).current_dir(root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rules = read(Path::new("deny.toml")).parse().unwrap();
    (rules, metadata["packages"].as_array().unwrap().clone())
}

fn name(package: &Value) -> String {
    format!("{}@{}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap())
}

/// Returns whether a rule's `crate` names a package: its name, with a version or the start of one if several versions are in the tree.
fn names(rule: &toml::Value, package: &str) -> bool {
    let wanted = rule["crate"].as_str().unwrap();
    package == wanted
        || package.starts_with(&format!("{wanted}."))
        || package.starts_with(&format!("{wanted}@"))
}

fn list<'a>(rules: &'a toml::Table, table: &str, key: &str) -> Vec<&'a toml::Value> {
    rules[table].get(key).and_then(toml::Value::as_array).into_iter().flatten().collect()
}

fn allows(license: &str, allowed: &[&str]) -> bool {
    let expression = spdx::Expression::parse_mode(license, spdx::ParseMode::LAX);
    expression.is_ok_and(|e| e.evaluate(|wanted| allowed.contains(&wanted.to_string().as_str())))
}

#[test]
fn licenses_are_those_that_netcl_may_pass_on() {
    let (rules, packages) = asked();
    let allowed: Vec<&str> = list(&rules, "licenses", "allow").iter().filter_map(|v| v.as_str()).collect();
    let exceptions = list(&rules, "licenses", "exceptions");
    let mut wrong = Vec::new();
    for package in &packages {
        let (name, license) = (name(package), package["license"].as_str().unwrap_or_default());
        let mine = exceptions.iter().filter(|rule| names(rule, &name));
        let more = mine.flat_map(|rule| rule["allow"].as_array().unwrap()).filter_map(toml::Value::as_str);
        let allowed: Vec<&str> = allowed.iter().copied().chain(more).collect();
        if !allows(license, &allowed) {
            wrong.push(format!("{name} has the license {license:?}, which deny.toml does not allow"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        allows("MIT/Apache-2.0", &["MIT"]) && !allows("MIT AND GPL-3.0", &["MIT"]) && !allows("", &["MIT"])
    );
}

#[test]
fn each_crate_is_there_once_or_deny_toml_says_why() {
    let (rules, packages) = asked();
    let skipped = list(&rules, "bans", "skip");
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for package in &packages {
        versions.entry(package["name"].as_str().unwrap()).or_default().push(name(package));
    }
    let mut wrong = Vec::new();
    for all in versions.values().filter(|all| all.len() > 1) {
        let left: Vec<_> = all.iter().filter(|name| !skipped.iter().any(|rule| names(rule, name))).collect();
        if left.len() > 1 {
            wrong.push(format!("{left:?}: add one of these versions to `skip` in deny.toml, with a reason"));
        }
    }
    for rule in skipped {
        if !packages.iter().any(|package| names(rule, &name(package))) {
            wrong.push(format!("deny.toml skips {}, which is not in the tree", rule["crate"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn packages_come_from_the_registry_or_from_this_tree() {
    let (_, packages) = asked();
    let strange = |p: &&Value| p["source"].as_str().is_some_and(|source| !source.starts_with("registry+"));
    let found: Vec<String> = packages.iter().filter(strange).map(name).collect();
    assert_eq!(found, [""; 0]);
}

/// A build that may change the lock file is not the build that was tested.
#[test]
fn builds_take_the_locked_versions() {
    let builds = ["build", "test", "run", "clippy", "check", "rustc", "nextest run", "deny"];
    let mut wrong = Vec::new();
    let scripts = files(&["sh", "yml"]).into_iter().chain([".ci/run".into(), "Makefile".into()]);
    for path in scripts {
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with('#')) {
            let calls = |how: &&str| {
                ["cargo ", "$cargo ", "$(CARGO) ", "maturin\" "].iter().any(|cargo| {
                    let call = format!("{cargo}{how} ");
                    line.contains(&call) && !line.contains(&format!("{call}--version"))
                })
            };
            if builds.iter().any(calls) && !line.contains("--locked") {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "without --locked:\n{}", wrong.join("\n"));
}

/// A tag can be moved to other code; a commit cannot.
#[test]
fn workflows_name_actions_by_commit() {
    let by_commit = |name: &str| {
        name.split_once('@')
            .is_some_and(|(_, at)| at.len() == 40 && at.chars().all(|c| c.is_ascii_hexdigit()))
    };
    for path in files(&["yml"]) {
        for line in read(&path).lines() {
            let Some((_, action)) = line.split_once("uses:") else { continue };
            let action = action.split('#').next().unwrap_or_default().trim();
            assert!(by_commit(action), "{}: {action} is not named by its commit", path.display());
        }
    }
}
