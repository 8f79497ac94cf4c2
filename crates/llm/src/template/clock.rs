//! `strftime_now`: the date in templates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Returns the current time in UTC.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Formats `time`, since 1970 in UTC, with C's `strftime` syntax.
///
/// # Errors
/// The unknown directive.
pub(super) fn format(time: Duration, format: &str) -> Result<String, String> {
    let moment = Moment::new(time);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // GNU's flag for numbers without leading zeros.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let written = directive.and_then(|directive| moment.write(directive, bare));
        let unknown =
            || format!("%{} is not a directive of strftime", directive.map(String::from).unwrap_or_default());
        out += &written.ok_or_else(unknown)?;
    }
    Ok(out)
}

/// A time split into its components.
struct Moment {
    time: Duration,
    days: u64,
    year: u64,
    month: u64,
    day: u64,
}

impl Moment {
    fn new(time: Duration) -> Self {
        let days = time.as_secs() / 86_400;
        let (year, month, day) = date(days);
        Self { time, days, year, month, day }
    }

    /// Returns the text of a directive; `bare` numbers do not have leading zeros.
    fn write(&self, directive: char, bare: bool) -> Option<String> {
        let seconds = self.time.as_secs();
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let two = |n: u64| if bare { n.to_string() } else { format!("{n:02}") };
        let (year, month, day) = (self.year, self.month, self.day);
        let weekday = ((self.days + 4) % 7) as usize;
        let of_year = self.days - days_before(year) + 1;
        let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[weekday]);
        Some(match directive {
            'Y' => year.to_string(),
            'y' => two(year % 100),
            'm' => two(month),
            'd' => two(day),
            'e' => format!("{day:2}"),
            'H' => two(hour),
            'I' => two((hour + 11) % 12 + 1),
            'M' => two(minute),
            'S' => two(second),
            'f' => format!("{:06}", self.time.subsec_micros()),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'j' => {
                if bare {
                    of_year.to_string()
                } else {
                    format!("{of_year:03}")
                }
            }
            'w' => weekday.to_string(),
            'u' => if weekday == 0 { 7 } else { weekday }.to_string(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'D' => format!("{month:02}/{day:02}/{:02}", year % 100),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            's' => seconds.to_string(),
            // Python's naive times have neither.
            'z' | 'Z' => String::new(),
            '%' => "%".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            _ => return None,
        })
    }
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Returns the days from 1970 to the first of January of `year`.
fn days_before(year: u64) -> u64 {
    let leaps = |y: u64| y / 4 - y / 100 + y / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Returns year, month and day, the last two from 1.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut left = days - days_before(year);
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares dates with the results of Python's `datetime.utcfromtimestamp(n).strftime(…)`.
    #[test]
    fn days_are_pythons() {
        let all = "%Y-%m-%d %H:%M:%S %j %A %B %a %b %I %p %y %-d %e";
        let cases = [
            (0, "1970-01-01 00:00:00 001 Thursday January Thu Jan 12 AM 70 1  1"),
            (951_782_400, "2000-02-29 00:00:00 060 Tuesday February Tue Feb 12 AM 00 29 29"),
            (1_721_999_999, "2024-07-26 13:19:59 208 Friday July Fri Jul 01 PM 24 26 26"),
            (1_735_689_599, "2024-12-31 23:59:59 366 Tuesday December Tue Dec 11 PM 24 31 31"),
            (4_107_542_400, "2100-03-01 00:00:00 060 Monday March Mon Mar 12 AM 00 1  1"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(format(Duration::from_secs(seconds), all).unwrap(), expected);
        }
        assert!(format(Duration::ZERO, "%Q").unwrap_err().contains("%Q"));
        assert!(format(Duration::ZERO, "100%").is_err());
    }
}
