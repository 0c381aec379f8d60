//! Statistics over raw samples.

use schemars::JsonSchema;
use serde::Serialize;

/// Percentile `q` (0 to 100) with linear interpolation between closest ranks, as `numpy.percentile`
/// does by default. `None` without samples.
#[must_use]
pub fn percentile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let rank = q.clamp(0.0, 100.0) / 100.0 * last as f64;
    let below = rank.floor();
    let low = sorted.get(below as usize).copied()?;
    let high = sorted.get((below as usize + 1).min(last)).copied()?;
    Some(low + (high - low) * (rank - below))
}

/// What repeated measurements of one figure say. Repeats are whole requests: tokens inside one are not
/// independent samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Summary {
    /// Number of samples.
    pub n: usize,
    /// Median.
    pub p50: f64,
    /// Mean.
    pub mean: f64,
    /// 95 % interval of the mean (Student's t), from two samples on.
    pub ci95: Option<[f64; 2]>,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// Sums up samples that are finite; `None` when there is none.
    #[must_use]
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let samples: Vec<f64> = samples.into_iter().filter(|x| x.is_finite()).collect();
        let n = samples.len();
        let p50 = percentile(&samples, 50.0)?;
        let mean = samples.iter().sum::<f64>() / n as f64;
        let ci95 = (n >= 2).then(|| {
            let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
            let error = (squares / (n - 1) as f64).sqrt() / (n as f64).sqrt();
            let half = t975(n - 1) * error;
            [mean - half, mean + half]
        });
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { n, p50, mean, ci95, min, max })
    }
}

/// The 97.5 % quantile of Student's t with `df` degrees of freedom: exact to three decimals up to 30
/// (any table, e.g. NIST/SEMATECH e-Handbook 1.3.6.7.2), beyond that by the expansion
/// z + (z³ + z)/(4 df) + (5z⁵ + 16z³ + 3z)/(96 df²), z = 1.959964 (Abramowitz and Stegun 26.7.5),
/// off by less than 0.001.
fn t975(df: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    let z = 1.959_964_f64;
    let n = df.max(1) as f64;
    let beyond =
        z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n.powi(2));
    df.checked_sub(1).and_then(|at| TABLE.get(at)).copied().unwrap_or(beyond)
}

#[cfg(test)]
mod tests {
    use super::{Summary, percentile, t975};

    #[test]
    fn percentiles_are_numpys() {
        // numpy.percentile([15, 20, 35, 40, 50], [0, 5, 30, 40, 95, 100])
        let samples = [50.0, 15.0, 40.0, 20.0, 35.0];
        for (q, expected) in
            [(0.0, 15.0), (5.0, 16.0), (30.0, 23.0), (40.0, 29.0), (95.0, 48.0), (100.0, 50.0)]
        {
            let got = percentile(&samples, q).unwrap();
            assert!((got - expected).abs() < 1e-9, "p{q}: {got}");
        }
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(percentile(&[7.0, f64::NAN], 99.0), Some(7.0));
    }

    #[test]
    fn intervals_are_students() {
        // scipy.stats.t.interval(0.95, 4, loc=mean, scale=sem) of [1, 2, 3, 4, 5]: 3 ± 1.9632
        let summary = Summary::of([1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let [low, high] = summary.ci95.unwrap();
        assert!((low - 1.0368).abs() < 1e-3 && (high - 4.9632).abs() < 1e-3, "{low} {high}");
        assert_eq!((summary.n, summary.p50, summary.min, summary.max), (5, 3.0, 1.0, 5.0));
        assert_eq!(Summary::of([1.0]).unwrap().ci95, None);
        assert!(Summary::of([]).is_none());
        assert!((t975(31) - 2.0395).abs() < 0.001 && (t975(120) - 1.980).abs() < 0.001);
    }
}
