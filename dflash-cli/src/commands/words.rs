//! Numbers and lists as people read them.

use dflash_core::cache::CacheKind;

/// `7.1 MB`: decimal units, as disks and published model sizes use them.
pub(crate) fn bytes(bytes: usize) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["kB", "MB", "GB", "TB"] {
        // What would be printed as 1000.0 belongs to the next unit.
        if value < 999.95 {
            break;
        }
        value /= 1e3;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A cache kind in words.
pub(crate) fn cache(kind: CacheKind) -> String {
    match kind {
        CacheKind::Full => "full attention".into(),
        CacheKind::Sliding { window } => format!("sliding attention, window {window}"),
        CacheKind::Recurrent => "recurrent (gated delta)".into(),
    }
}

/// Groups equal items: `0-2, 4-6` with the item, in order of first appearance.
pub(crate) fn runs<T: PartialEq>(items: &[T]) -> Vec<(String, &T)> {
    let mut groups: Vec<(Vec<(usize, usize)>, &T)> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match groups.iter_mut().find(|(_, known)| *known == item) {
            Some((ranges, _)) => match ranges.last_mut() {
                Some((_, end)) if *end + 1 == at => *end = at,
                _ => ranges.push((at, at)),
            },
            None => groups.push((vec![(at, at)], item)),
        }
    }
    let name = |(start, end): &(usize, usize)| {
        if start == end {
            start.to_string()
        } else {
            format!("{start}-{end}")
        }
    };
    groups
        .into_iter()
        .map(|(ranges, item)| (ranges.iter().map(name).collect::<Vec<_>>().join(", "), item))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(7_127_744), "7.1 MB");
        assert_eq!(bytes(999_960), "1.0 MB");
    }

    #[test]
    fn equal_neighbours_are_one_range() {
        assert_eq!(
            runs(&[1, 1, 1, 2, 1, 1, 2]),
            [("0-2, 4-5".into(), &1), ("3, 6".into(), &2)]
        );
        assert!(runs::<u8>(&[]).is_empty());
    }
}
