// Numbers and moments as the reader writes them.

export const MINUTE = 60, HOUR = 3600, DAY = 86400;

const numbers = new Intl.NumberFormat();
const signed = new Intl.NumberFormat(undefined, { signDisplay: "exceptZero" });
const percents = new Intl.NumberFormat(undefined, { style: "percent", minimumFractionDigits: 2 });
const wholePercents = new Intl.NumberFormat(undefined, { style: "percent" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "narrow" });

export const whole = (number) => numbers.format(number);
export const change = (number) => signed.format(number);
export const percent = (fraction) => percents.format(fraction);
// Rounded down: 100 % is said of what is done.
export const part = (fraction) => wholePercents.format(Math.floor(fraction * 100) / 100);
export const timeOfDay = (seconds) => clock.format(seconds * 1000);

export function age(seconds) {
  for (const [unit, size] of [["day", DAY], ["hour", HOUR], ["minute", MINUTE]]) {
    if (seconds >= size) return ago.format(-Math.floor(seconds / size), unit);
  }
  return ago.format(-Math.max(0, Math.floor(seconds)), "second");
}

// A moment as precise as a span of this many seconds needs it.
export const when = (seconds, span) => (span > 60 * DAY ? date : moment).format(seconds * 1000);

// Labels of an axis of time whose ticks are `step` seconds apart. Where a larger unit begins it is named.
const axis = {
  year: new Intl.DateTimeFormat(undefined, { year: "numeric" }),
  month: new Intl.DateTimeFormat(undefined, { month: "short" }),
  day: new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" }),
  minute: new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" }),
  second: new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit", second: "2-digit" }),
};
export function tick(seconds, step) {
  const at = new Date(seconds * 1000);
  const midnight = at.getHours() === 0 && at.getMinutes() === 0;
  if (step >= 364 * DAY || (step >= 28 * DAY && at.getMonth() === 0)) return axis.year.format(at);
  if (step >= 28 * DAY) return axis.month.format(at);
  if (step >= DAY || midnight) return axis.day.format(at);
  return (step >= MINUTE ? axis.minute : axis.second).format(at);
}

// Short numbers that still differ where ticks are `step` apart.
const short = new Map();
export function compact(number, step) {
  const unit = 10 ** (3 * Math.floor(Math.log10(Math.max(1, Math.abs(number))) / 3));
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  if (!short.has(digits)) {
    short.set(digits, new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: digits }));
  }
  return short.get(digits).format(number);
}
