//! Choosing from rows of numbers: the best, the best few, and whether all are finite.
//!
//! Equal numbers are ordered by index, the lowest first. NaN never wins.

use super::Cpu;
use super::isa::Kernel;
use super::simd::{LANES, Simd};

/// The largest number of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best {
    /// Its index; the lowest if several are equal, 0 if every number is NaN.
    pub id: u32,
    /// The number itself; −∞ if every number is NaN or the row is empty.
    pub value: f32,
    /// Whether every number of the row is finite.
    pub finite: bool,
}

/// Finds the largest number.
pub fn argmax(cpu: &Cpu, row: &[f32]) -> Best {
    let (value, finite) = cpu.isa.run(Largest(row));
    // Nothing is larger than the largest, so the part that holds it is the first that reaches it.
    let part = cpu.isa.run(Reaching { row, value });
    let id = row[part..].iter().position(|x| *x == value);
    Best {
        id: id.map_or(0, |id| (part + id) as u32),
        value,
        finite,
    }
}

/// Whether every number is finite.
pub fn all_finite(cpu: &Cpu, x: &[f32]) -> bool {
    cpu.isa.run(Largest(x)).1
}

/// The `k` largest numbers with their indices, the largest first.
///
/// Shorter if the row has fewer numbers that are not NaN.
pub fn top_k(cpu: &Cpu, row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(k + 1);
    if k == 0 {
        return best;
    }
    // Smaller numbers are not among the best; nearly all are smaller.
    let mut least = match GROUPS.checked_sub(k) {
        Some(rank) if row.len() >= GROUPS => {
            let mut largest = cpu.isa.run(GroupMaxima(row));
            *largest.select_nth_unstable_by(rank, f32::total_cmp).1
        }
        _ => f32::NEG_INFINITY,
    };
    let mut start = 0;
    while start < row.len() {
        let rest = &row[start..];
        start += cpu.isa.run(Reaching {
            row: rest,
            value: least,
        });
        let end = (start + PART).min(row.len());
        for (i, x) in row[start..end].iter().enumerate() {
            // A later number has to be larger than the last one kept, not equal, to get in.
            let full = best.len() == k;
            let enters = *x >= least && !(full && *x <= best[k - 1].1);
            if enters {
                let at = best.partition_point(|b| b.1 >= *x);
                best.insert(at, ((start + i) as u32, *x));
                best.truncate(k);
            }
        }
        if best.len() == k {
            least = best[k - 1].1;
        }
        start = end;
    }
    best
}

/// Numbers that a search dismisses at once.
const PART: usize = LANES;
/// Groups of numbers whose largest are compared first.
const GROUPS: usize = 4 * LANES;

/// The largest number of each of 64 groups that share out a row: as many numbers are at least as
/// large as the k-th largest of them.
struct GroupMaxima<'a>(&'a [f32]);

impl Kernel for GroupMaxima<'_> {
    type Out = [f32; GROUPS];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; GROUPS] {
        let mut max = [s.splat(f32::NEG_INFINITY); 4];
        for part in self.0.as_chunks::<GROUPS>().0 {
            let (vectors, _) = part.as_chunks::<LANES>();
            for i in 0..4 {
                // NaN in the first place gives the second.
                max[i] = s.max(s.load(&vectors[i]), max[i]);
            }
        }
        let mut all = [0.0; GROUPS];
        for (lanes, max) in all.as_chunks_mut::<LANES>().0.iter_mut().zip(max) {
            s.store(lanes, max);
        }
        all
    }
}

/// Where the first part of a row begins that holds a number not below a value; the row's length if none does.
struct Reaching<'a> {
    row: &'a [f32],
    value: f32,
}

impl Kernel for Reaching<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> usize {
        for (i, part) in self.row.chunks(PART).enumerate() {
            let mut reached = false;
            for x in part {
                reached |= *x >= self.value;
            }
            if reached {
                return i * PART;
            }
        }
        self.row.len()
    }
}

/// The largest number, and whether all are finite.
struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Out = (f32, bool);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, bool) {
        let mut max = [s.splat(f32::NEG_INFINITY); 4];
        // A number times zero is zero, unless it is not finite; NaN then stays in the sum.
        let mut zero = [s.splat(0.0); 4];
        let (fours, rest) = self.0.as_chunks::<{ 4 * LANES }>();
        for four in fours {
            let (parts, _) = four.as_chunks::<LANES>();
            for i in 0..4 {
                let v = s.load(&parts[i]);
                max[i] = s.max(v, max[i]);
                zero[i] = s.fma(v, s.splat(0.0), zero[i]);
            }
        }
        let mut lanes = [0.0; LANES];
        let all = s.max(s.max(max[0], max[1]), s.max(max[2], max[3]));
        s.store(&mut lanes, all);
        let mut value = f32::NEG_INFINITY;
        for x in lanes.iter().chain(rest) {
            value = if *x > value { *x } else { value };
        }
        let zero = s.sum(s.add(s.add(zero[0], zero[1]), s.add(zero[2], zero[3])));
        (value, zero == 0.0 && rest.iter().all(|x| x.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Numbers, single};
    use super::*;

    fn rows() -> Vec<Vec<f32>> {
        let mut n = Numbers::new(8);
        let mut rows: Vec<Vec<f32>> = [1, 2, 15, 64, 65, 1000, 5003].map(|len| n.vec(len)).into();
        // Many ties.
        rows.extend([100, 1500].map(|len| {
            n.vec(len)
                .iter()
                .map(|x| (x * 4.0).round())
                .collect::<Vec<f32>>()
        }));
        rows.push(vec![-3.0; 300]);
        rows.push(vec![f32::NEG_INFINITY; 70]);
        let mut spoiled = n.vec(500);
        (spoiled[3], spoiled[77], spoiled[400]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        rows.push(spoiled);
        rows
    }

    /// Indices by falling value, ties by rising index, without NaN.
    fn sorted(row: &[f32]) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = row
            .iter()
            .enumerate()
            .filter(|x| !x.1.is_nan())
            .map(|(i, x)| (i as u32, *x))
            .collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // −0 and 0 are equal.
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
        all
    }

    #[test]
    fn the_best_are_found_in_order() {
        for cpu in single() {
            for row in rows() {
                let expected = sorted(&row);
                let best = argmax(&cpu, &row);
                assert_eq!((best.id, best.value), expected[0], "{cpu:?} {}", row.len());
                assert_eq!(
                    best.finite,
                    row.iter().all(|x| x.is_finite()),
                    "{cpu:?} {}",
                    row.len()
                );
                for k in [0, 1, 2, 7, 64, 6000] {
                    assert_eq!(
                        top_k(&cpu, &row, k),
                        expected[..k.min(expected.len())],
                        "{cpu:?} {} {k}",
                        row.len()
                    );
                }
            }
        }
    }

    #[test]
    fn a_bad_number_is_seen_wherever_it_is() {
        for cpu in single() {
            for len in [1, 16, 63, 64, 200] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    for at in 0..len {
                        let mut row = vec![1.0; len];
                        assert!(all_finite(&cpu, &row));
                        row[at] = bad;
                        assert!(!all_finite(&cpu, &row), "{cpu:?} {len} {at}");
                        assert!(!argmax(&cpu, &row).finite);
                    }
                }
            }
            let nothing = argmax(&cpu, &[f32::NAN; 70]);
            assert_eq!(
                (nothing.id, nothing.value, nothing.finite),
                (0, f32::NEG_INFINITY, false)
            );
            assert_eq!(
                argmax(&cpu, &[]),
                Best {
                    id: 0,
                    value: f32::NEG_INFINITY,
                    finite: true
                }
            );
            assert_eq!(
                argmax(&cpu, &[f32::NAN, 2.0, f32::NAN, 2.0]).id,
                1,
                "NaN never wins"
            );
        }
    }
}
