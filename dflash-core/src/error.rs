//! The error of every public function: a variant per decision that a caller can take.
//!
//! A message says what is wrong, where, and what was expected. Advice is kept apart in
//! [`Error::hint`], so that a program can show it on a line of its own or leave it out, and
//! [`Error::code`] is a stable name for scripts and documentation.

use std::fmt;
use std::path::{Path, PathBuf};

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of a tensor library, carried as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What went wrong, where, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system could not read a file that exists or should exist.
    #[error("cannot read `{}`: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A model reference leads nowhere.
    #[error("no model at `{}`: {reason}", path.display())]
    NotFound {
        /// What was looked for.
        path: PathBuf,
        /// What was found instead, or where it was looked for.
        reason: String,
    },
    /// A key of a configuration file is missing, contradicts another one, or asks for something unknown.
    #[error("`{key}` in `{}`: {reason}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The key, dotted (`rope_parameters.rope_theta`).
        key: String,
        /// What is wrong with it and what was expected.
        reason: String,
        /// What the user can do.
        hint: Option<String>,
    },
    /// A checkpoint's files are damaged or contradict each other.
    #[error("checkpoint `{}`: {reason}", path.display())]
    Checkpoint {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what was expected.
        reason: String,
        /// What the user can do.
        hint: Option<String>,
    },
    /// A tensor that the model needs is in none of the places where files keep it.
    #[error("tensor `{name}` is missing from `{}` (looked for {})", path.display(), tried.join(", "))]
    MissingTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name in the model.
        name: String,
        /// Every spelling that was tried.
        tried: Vec<String>,
    },
    /// Tensors that no part of the model claimed.
    #[error("`{}` holds {} tensor(s) that this model does not use: {}", path.display(), names.len(), first_names(names))]
    UnclaimedTensors {
        /// The checkpoint.
        path: PathBuf,
        /// Their names, sorted.
        names: Vec<String>,
    },
    /// Sizes do not fit.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// The tensor or argument.
        what: String,
        /// The shape or size that fits.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Something that exists but that this build, backend or version does not do.
    #[error("{what} is not supported{}", by.as_ref().map(|b| format!(" by {b}")).unwrap_or_default())]
    Unsupported {
        /// The feature, format or architecture.
        what: String,
        /// The backend or component that refuses.
        by: Option<String>,
        /// What does work.
        hint: Option<String>,
    },
    /// Target and draft do not belong together.
    #[error("target and draft do not fit: {reason}")]
    Pairing {
        /// Which check failed.
        check: PairingCheck,
        /// Both sides, with their numbers.
        reason: String,
        /// What the user can do.
        hint: Option<String>,
    },
    /// A cache cannot be put back exactly.
    #[error("layer {layer}: the cache cannot be rolled back: {reason}")]
    Rollback {
        /// The layer, counted from 0.
        layer: usize,
        /// Why not.
        reason: String,
    },
    /// The target computed something that is not a number.
    #[error("{what} is not finite at position {position}{} ({dtype})", layer.map(|l| format!(", first in layer {l}")).unwrap_or_default())]
    NonFinite {
        /// What was computed (`target logits`) or read (a weight's name).
        what: String,
        /// Position in the sequence, or row of a weight.
        position: usize,
        /// The first layer with a bad value, when it was traced.
        layer: Option<usize>,
        /// The number format it was computed or stored in.
        dtype: String,
    },
    /// A tensor library refused an operation.
    #[error("backend operation `{op}`: {source}")]
    Backend {
        /// The operation of the backend trait.
        op: &'static str,
        /// The library's reason.
        source: BoxError,
    },
    /// A tokenizer file is unusable, or text could not be encoded.
    #[error("tokenizer{}: {reason}", at(path.as_deref()))]
    Tokenizer {
        /// The file, if one is to blame.
        path: Option<PathBuf>,
        /// What is wrong.
        reason: String,
    },
    /// A chat template is unusable or refused the conversation.
    #[error("chat template: {reason}")]
    Template {
        /// The template engine's reason, with its line.
        reason: String,
    },
    /// A request asks for something impossible. Nothing was changed.
    #[error("{what}: {reason}")]
    Request {
        /// The option or field.
        what: &'static str,
        /// What is wrong and what was expected.
        reason: String,
        /// What the user can do.
        hint: Option<String>,
    },
    /// A backend or device was asked for that cannot be had here.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// The backend or device.
        what: String,
        /// Why not, and what is available.
        reason: String,
        /// How to get it.
        hint: Option<String>,
    },
    /// An earlier failure of a lazy evaluation left this state unusable; it must be dropped.
    #[error("this sequence's caches are unusable after an earlier failure ({reason})")]
    Poisoned {
        /// The earlier failure.
        reason: String,
    },
    /// An error with the place where it happened in front of it.
    #[error("{place}: {source}")]
    At {
        /// The place (`layer 3`, `draft`).
        place: String,
        /// The error itself.
        source: Box<Error>,
    },
}

/// Which pairing check failed; each has a stable code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PairingCheck {
    /// The hidden sizes differ.
    Hidden,
    /// The draft's vocabulary does not fit the target's embedding.
    Vocabulary,
    /// Tap count or a tap id does not fit.
    Taps,
    /// The mask token is outside the embedding.
    MaskToken,
    /// The draft was made for a target of another depth.
    Layers,
    /// A target was given as draft or the other way round.
    Role,
    /// The tokenizers give the same token different ids.
    Tokenizer,
}

impl Error {
    /// Wraps a tensor library's error with the operation that it happened in.
    pub fn backend(op: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Backend {
            op,
            source: source.into(),
        }
    }

    /// A shape error; `expected` and `found` are printed as they are.
    pub fn shape(
        what: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self::Shape {
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A configuration error without advice.
    pub fn config(
        path: impl AsRef<Path>,
        key: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Config {
            path: path.as_ref().into(),
            key: key.into(),
            reason: reason.into(),
            hint: None,
        }
    }

    /// A checkpoint error without advice.
    pub fn checkpoint(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Self::Checkpoint {
            path: path.as_ref().into(),
            reason: reason.into(),
            hint: None,
        }
    }

    /// A request error without advice.
    pub fn request(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Request {
            what,
            reason: reason.into(),
            hint: None,
        }
    }

    /// An unsupported feature, with no backend to blame.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported {
            what: what.into(),
            by: None,
            hint: None,
        }
    }

    /// The same error with advice, on the variants that carry their own.
    #[must_use]
    pub fn with_hint(mut self, advice: impl Into<String>) -> Self {
        match &mut self {
            Self::Config { hint, .. }
            | Self::Checkpoint { hint, .. }
            | Self::Unsupported { hint, .. }
            | Self::Pairing { hint, .. }
            | Self::Request { hint, .. }
            | Self::Unavailable { hint, .. } => *hint = Some(advice.into()),
            _ => {}
        }
        self
    }

    /// The same error with a place in front of it.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Self::At {
            place: place.into(),
            source: Box::new(self),
        }
    }

    /// What the user can do about it, if anything is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config { hint, .. }
            | Self::Checkpoint { hint, .. }
            | Self::Unsupported { hint, .. }
            | Self::Pairing { hint, .. }
            | Self::Request { hint, .. }
            | Self::Unavailable { hint, .. } => hint.clone(),
            Self::MissingTensor { .. } | Self::UnclaimedTensors { .. } => {
                Some("the checkpoint does not match its config.json; download it again, or check `model_type` and `architectures`".into())
            }
            Self::NonFinite { .. } => Some("try `--dtype f32`; if it stays, the checkpoint is damaged".into()),
            Self::At { source, .. } => source.hint(),
            _ => None,
        }
    }

    /// A stable name, for scripts and documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "E-IO",
            Self::NotFound { .. } => "E-NOT-FOUND",
            Self::Config { .. } => "E-CONFIG",
            Self::Checkpoint { .. } => "E-CHECKPOINT",
            Self::MissingTensor { .. } => "E-TENSOR-MISSING",
            Self::UnclaimedTensors { .. } => "E-TENSOR-EXTRA",
            Self::Shape { .. } => "E-SHAPE",
            Self::Unsupported { .. } => "E-UNSUPPORTED",
            Self::Pairing { check, .. } => match check {
                PairingCheck::Hidden => "E-PAIR-HIDDEN",
                PairingCheck::Vocabulary => "E-PAIR-VOCAB",
                PairingCheck::Taps => "E-PAIR-TAPS",
                PairingCheck::MaskToken => "E-PAIR-MASK",
                PairingCheck::Layers => "E-PAIR-LAYERS",
                PairingCheck::Role => "E-PAIR-ROLE",
                PairingCheck::Tokenizer => "E-PAIR-TOKENIZER",
            },
            Self::Rollback { .. } => "E-ROLLBACK",
            Self::NonFinite { .. } => "E-NON-FINITE",
            Self::Backend { .. } => "E-BACKEND",
            Self::Tokenizer { .. } => "E-TOKENIZER",
            Self::Template { .. } => "E-TEMPLATE",
            Self::Request { .. } => "E-REQUEST",
            Self::Unavailable { .. } => "E-UNAVAILABLE",
            Self::Poisoned { .. } => "E-POISONED",
            Self::At { source, .. } => source.code(),
        }
    }

    /// True when the command line or the machine is to blame rather than the files or the work.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NotFound { .. } | Self::Request { .. } | Self::Unavailable { .. } => true,
            Self::At { source, .. } => source.is_usage(),
            _ => false,
        }
    }
}

fn first_names(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(4)
        .map(|n| format!("`{n}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > 4 {
        text.push_str(", …");
    }
    text
}

fn at(path: Option<&Path>) -> String {
    path.map(|p| format!(" `{}`", p.display()))
        .unwrap_or_default()
}
