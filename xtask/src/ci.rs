//! What CI checks, as a list of steps from the cheapest to the dearest.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::{Args, ValueEnum};

use crate::shell::{Line, spoken};
use crate::{apple_check, compare, licences, mlx_host, proofs, smoke, tidy};

/// The kinds of steps, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// Formatting
    Fmt,
    /// Rules of the repository
    Tidy,
    /// What the crates may and may not depend on, and under which licences
    Tree,
    /// Lints, for every set of features
    Clippy,
    /// API documentation without warnings
    Doc,
    /// The test suite
    Test,
    /// The MLX backend on the processor
    Mlx,
    /// The code for Apple's machines
    Apple,
    /// The released program says something
    Smoke,
    /// The backends agree
    Compare,
}

/// Which steps to run.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Run these groups only
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    only: Vec<Group>,
    /// Leave these groups out
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    skip: Vec<Group>,
    /// Print the steps without running them
    #[arg(long)]
    list: bool,
}

impl Options {
    fn wants(&self, group: Group) -> bool {
        (self.only.is_empty() || self.only.contains(&group)) && !self.skip.contains(&group)
    }
}

/// Packages and their sets of features, each linted on its own.
const LINTED: &[(&str, &[&str])] = &[
    ("xtask", &[""]),
    (
        "dflash-core",
        &[
            "--no-default-features",
            "--features text",
            "--features testing",
            "--all-features",
        ],
    ),
    ("dflash-mlx", &[""]),
    ("dflash-candle", &["", "--features testing"]),
    (
        "dflash-cli",
        &[
            "--no-default-features",
            "--no-default-features --features cli",
            "",
        ],
    ),
];

/// Everything that core offers; unlike `--all-features` it leaves out what needs a GPU's toolkit.
const CORE_FEATURES: &str = "--features dflash-core/text,dflash-core/testing,dflash-candle/testing";

/// Whether this system runs what stands in for a Mac. The wheels of MLX exist for it only; a Mac
/// checks and tests the same crates with the others.
const STAND_INS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    Run(Line),
    Tidy,
    Proofs,
    Licences,
    Mlx,
    Apple,
    Smoke,
    Compare,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    group: Group,
    work: Work,
}

impl Step {
    fn run(group: Group, line: Line) -> Self {
        Self {
            group,
            work: Work::Run(line),
        }
    }

    /// The command that repeats this step alone.
    fn repeat(&self) -> String {
        match &self.work {
            Work::Run(line) => line.to_string(),
            Work::Tidy => "cargo xtask tidy".to_owned(),
            Work::Proofs | Work::Licences => "cargo xtask ci --only tree".to_owned(),
            Work::Mlx => "cargo xtask mlx-host test".to_owned(),
            Work::Apple => "cargo xtask apple-check".to_owned(),
            Work::Smoke => "cargo xtask ci --only smoke".to_owned(),
            Work::Compare => "cargo xtask compare".to_owned(),
        }
    }

    /// What this step is about, where its command does not say it.
    fn title(&self) -> &'static str {
        match &self.work {
            Work::Run(_) => "",
            Work::Tidy => "rules of the repository",
            Work::Proofs => "what the crates may depend on",
            Work::Licences => "licences of all dependencies",
            Work::Mlx => "the MLX backend on the processor",
            Work::Apple => "the code for Apple's machines",
            Work::Smoke => "the released program",
            Work::Compare => "backends against each other",
        }
    }

    fn perform(&self) -> Result<()> {
        match &self.work {
            Work::Run(line) => line.run(),
            Work::Tidy => tidy::run(),
            Work::Proofs => proofs::run(),
            Work::Licences => licences::run(),
            Work::Mlx => mlx_host::check(),
            Work::Apple => apple_check::run(),
            Work::Smoke => smoke::run(),
            Work::Compare => compare::run(&compare::Options::default()),
        }
    }
}

/// All steps, cheapest first.
fn steps() -> Vec<Step> {
    let mut steps = vec![
        Step::run(Group::Fmt, Line::new("cargo fmt --all --check")),
        Step {
            group: Group::Tidy,
            work: Work::Tidy,
        },
        Step {
            group: Group::Tree,
            work: Work::Proofs,
        },
        Step {
            group: Group::Tree,
            work: Work::Licences,
        },
    ];
    for (package, sets) in LINTED {
        for features in *sets {
            let line = format!(
                "cargo clippy --locked -p {package} {features} --all-targets -- -D warnings"
            );
            steps.push(Step::run(Group::Clippy, Line::new(&line)));
        }
    }
    let doc = Line::new(&format!(
        "cargo doc --locked --workspace --no-deps {CORE_FEATURES}"
    ));
    steps.push(Step::run(
        Group::Doc,
        doc.env("RUSTDOCFLAGS", "-D warnings"),
    ));
    // Once as a developer builds it, where integers and assertions are checked and floats take the
    // unoptimised path, and once optimised with the same checks, where the large tests are quick.
    let debug = "cargo test --locked -p dflash-core --features text,testing";
    let whole = format!("cargo test --locked --workspace --profile ci {CORE_FEATURES}");
    steps.push(Step::run(Group::Test, Line::new(debug)));
    steps.push(Step::run(Group::Test, Line::new(&whole)));
    if STAND_INS {
        steps.push(Step {
            group: Group::Mlx,
            work: Work::Mlx,
        });
        steps.push(Step {
            group: Group::Apple,
            work: Work::Apple,
        });
    }
    steps.push(Step {
        group: Group::Smoke,
        work: Work::Smoke,
    });
    steps.push(Step {
        group: Group::Compare,
        work: Work::Compare,
    });
    steps
}

/// Runs the steps that the options ask for, up to the first failure.
///
/// # Errors
/// When a step fails, with the command that repeats it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let steps: Vec<Step> = steps()
        .into_iter()
        .filter(|step| options.wants(step.group))
        .collect();
    ensure!(!steps.is_empty(), "these options leave no step to run");
    if options.list {
        for step in &steps {
            println!("{:7}  {}", name(step.group), step.repeat());
        }
        return Ok(());
    }
    let mut times: Vec<(Group, Duration)> = Vec::new();
    let count = steps.len();
    for (number, step) in steps.iter().enumerate() {
        println!(
            "\n=== {}/{count} {} {}",
            number + 1,
            name(step.group),
            step.title()
        );
        let start = Instant::now();
        let result = step.perform();
        let time = start.elapsed();
        println!(
            "=== {} after {}",
            if result.is_ok() { "ok" } else { "FAILED" },
            spoken(time)
        );
        result.map_err(|error| anyhow!("{error:#}\nrepeat with: {}", step.repeat()))?;
        match times.last_mut() {
            Some((group, total)) if *group == step.group => *total += time,
            _ => times.push((step.group, time)),
        }
    }
    println!();
    for (group, time) in &times {
        println!("{:7}  {:>12}", name(*group), spoken(*time));
    }
    println!(
        "{:7}  {:>12}",
        "all",
        spoken(times.iter().map(|(_, time)| *time).sum())
    );
    Ok(())
}

/// The test suite: the test group alone.
///
/// # Errors
/// As [`run`].
pub(crate) fn test() -> Result<()> {
    run(&Options {
        only: vec![Group::Test],
        ..Options::default()
    })
}

fn name(group: Group) -> String {
    group
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_step_and_groups_run_in_order() {
        let steps = steps();
        let order: Vec<usize> = steps
            .iter()
            .map(|step| {
                Group::value_variants()
                    .iter()
                    .position(|&group| group == step.group)
                    .expect("listed")
            })
            .collect();
        assert!(order.is_sorted());
        for (at, group) in Group::value_variants().iter().enumerate() {
            let stands_in = matches!(group, Group::Mlx | Group::Apple);
            assert_eq!(order.contains(&at), STAND_INS || !stands_in, "{group:?}");
        }
    }

    #[test]
    fn every_member_is_linted() {
        let manifest = include_str!("../../Cargo.toml");
        for member in crate::tidy::manifest::members(manifest) {
            assert!(
                LINTED.iter().any(|(package, _)| *package == member),
                "{member}"
            );
        }
    }

    #[test]
    fn only_and_skip_choose_groups() {
        let only = Options {
            only: vec![Group::Clippy, Group::Test],
            skip: vec![Group::Test],
            ..Options::default()
        };
        assert!(only.wants(Group::Clippy));
        assert!(!only.wants(Group::Test));
        assert!(!only.wants(Group::Fmt));
        assert!(Options::default().wants(Group::Smoke));
        let none = Options {
            only: vec![Group::Fmt],
            skip: vec![Group::Fmt],
            ..Options::default()
        };
        assert!(run(&none).is_err());
    }

    #[test]
    fn a_step_says_how_to_repeat_it() {
        let steps = steps();
        assert_eq!(steps[0].repeat(), "cargo fmt --all --check");
        assert!(steps.iter().all(|step| step.repeat().contains("cargo ")));
    }
}
