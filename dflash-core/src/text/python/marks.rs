//! Text that carries marks: see the module that guards special tokens.

use super::methods::is_space;

/// The characters that mark a span of a message, if a render has any.
///
/// A template must not notice them, so what looks at the ends of a text looks through them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks(pub(crate) Option<[char; 2]>);

impl Marks {
    fn has(self, c: char) -> bool {
        self.0.is_some_and(|marks| marks.contains(&c))
    }

    pub(super) fn are_in(self, text: &str) -> bool {
        self.0.is_some() && text.contains(|c| self.has(c))
    }

    pub(super) fn removed_from(self, text: &str) -> String {
        text.replace(|c| self.has(c), "")
    }

    /// The text without any of `chars`, or white space, at its ends. Marks found on the way stay.
    pub(super) fn trim(self, text: &str, chars: Option<&str>, start: bool, end: bool) -> String {
        let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
        let dropped = |c: char| cut(c) || self.has(c);
        let after = if start {
            text.trim_start_matches(dropped)
        } else {
            text
        };
        let middle = if end {
            after.trim_end_matches(dropped)
        } else {
            after
        };
        let (before, rest) = text.split_at(text.len() - after.len());
        let behind = &rest[middle.len()..];
        let marks = |text: &str| text.chars().filter(|&c| self.has(c)).collect::<String>();
        marks(before) + middle + &marks(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::Marks;

    #[test]
    fn ends_are_trimmed_through_marks() {
        let marks = Marks(Some(['(', ')']));
        assert_eq!(marks.trim(")\n (x) \n", None, true, true), ")(x)");
        assert_eq!(marks.trim("xx(a)xx", Some("x"), true, false), "(a)xx");
        assert_eq!(marks.trim(" ( ", None, true, true), "(");
        assert_eq!(marks.trim("", None, true, true), "");
        assert_eq!(Marks(None).trim(" (a) ", None, false, true), " (a)");
    }
}
