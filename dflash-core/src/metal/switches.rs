//! Which kernels may be used.

use std::fmt;

use crate::{Error, Result};

/// A use of kernels that can be switched off; its composite or the library's own operation then takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// The gated delta rule and its replay.
    GatedDelta,
    /// Products of a few rows with packed matrices.
    AffineRows,
    /// Attention of a few rows over a long cache.
    Attention,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GatedDelta, Self::AffineRows, Self::Attention];

    /// The name that options take.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GatedDelta => "gated-delta",
            Self::AffineRows => "affine-rows",
            Self::Attention => "attention",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which families are on; all of them at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    on: [bool; Family::ALL.len()],
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            on: [true; Family::ALL.len()],
        }
    }
}

impl Switches {
    /// None of them.
    pub const NONE: Self = Self {
        on: [false; Family::ALL.len()],
    };

    /// All but those with the given names.
    ///
    /// # Errors
    /// A name that no family has.
    pub fn all_but<S: AsRef<str>>(names: &[S]) -> Result<Self> {
        let mut switches = Self::default();
        for name in names {
            let name = name.as_ref();
            let family = Family::ALL.into_iter().find(|f| f.name() == name);
            let family = family.ok_or_else(|| {
                let known = Family::ALL.map(Family::name).join("`, `");
                Error::request(
                    "kernels-off",
                    format!("`{name}` is no kernel, expected `{known}`"),
                )
            })?;
            switches.turn_off(family);
        }
        Ok(switches)
    }

    /// Whether a family may be used.
    pub const fn is_on(&self, family: Family) -> bool {
        self.on[family as usize]
    }

    /// Uses a family no longer.
    pub const fn turn_off(&mut self, family: Family) {
        self.on[family as usize] = false;
    }

    /// A note that names those that are off, if any is.
    pub fn note(&self) -> Option<String> {
        let off = Family::ALL.into_iter().filter(|f| !self.is_on(*f));
        let off: Vec<String> = off.map(|f| format!("`{f}`")).collect();
        (!off.is_empty()).then(|| format!("Metal kernels switched off: {}", off.join(", ")))
    }

    /// Only one family of those that are on.
    #[must_use]
    pub fn only(&self, family: Family) -> Self {
        let mut only = Self::NONE;
        only.on[family as usize] = self.is_on(family);
        only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_switch_off() {
        let all = Switches::all_but::<&str>(&[]).expect("no names");
        assert!(Family::ALL.into_iter().all(|f| all.is_on(f)));
        let some = Switches::all_but(&["attention"]).expect("a name");
        assert!(!some.is_on(Family::Attention) && some.is_on(Family::GatedDelta));
        assert_eq!(all.note(), None);
        assert!(some.note().is_some_and(|n| n.ends_with(": `attention`")));
        assert_eq!(some.only(Family::Attention), Switches::NONE);
        let wrong = Switches::all_but(&["atention"]).expect_err("no such kernel");
        assert!(wrong.to_string().contains("`affine-rows`"), "{wrong}");
    }
}
