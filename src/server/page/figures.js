// Figures as people read them: the same way on the dashboard and in `percheron top`.

const LARGEST_SHOWN = 1e15;
const MEBIBYTE = 1024 * 1024;

function shown(number) {
    return Number.isFinite(number) && number >= 0 && number < LARGEST_SHOWN;
}

function grouped(digits) {
    const [whole, rest] = digits.split('.');
    const groups = whole.replace(/\B(?=(\d{3})+$)/g, ',');
    return rest === undefined ? groups : `${groups}.${rest}`;
}

// 1,234,567; what no counter can be shows as "-".
export function wholeText(number) {
    return shown(number) ? grouped(fixed(number, 0)) : '-';
}

// One digit after the point: 1,204.0
export function rateText(perSecond) {
    return shown(perSecond) ? grouped(fixed(perSecond, 1)) : '-';
}

// "61.3 %" of a share from 0 to 1; "-" of none.
export function shareText(share) {
    return share !== null && shown(share) ? `${fixed(share * 100, 1)} %` : '-';
}

// "0.8 ms", "12 ms", "1.24 s"
export function latencyText(seconds) {
    if (seconds === null || !shown(seconds)) return '-';
    if (seconds < 0.00995) return `${fixed(seconds * 1000, 1)} ms`;
    if (seconds < 0.9995) return `${fixed(seconds * 1000, 0)} ms`;
    return `${fixed(seconds, 2)} s`;
}

// "9.3 s", "83 s", "12 min", "3 h 05 min", "4 d 02 h"
export function durationText(seconds) {
    if (!shown(seconds)) return '-';
    if (seconds < 9.95) return `${fixed(seconds, 1)} s`;
    const whole = Math.floor(seconds + 0.5);
    if (whole < 120) return `${whole} s`;
    const minutes = Math.floor(whole / 60);
    if (minutes < 120) return `${minutes} min`;
    const hours = Math.floor(minutes / 60);
    if (hours < 48) return `${hours} h ${twoDigits(minutes % 60)} min`;
    return `${Math.floor(hours / 24)} d ${twoDigits(hours % 24)} h`;
}

// "812 MiB", "1.6 GiB"
export function bytesText(bytes) {
    if (!shown(bytes)) return '-';
    if (bytes < 1024 * MEBIBYTE) return `${fixed(bytes / MEBIBYTE, 0)} MiB`;
    return `${fixed(bytes / MEBIBYTE / 1024, 1)} GiB`;
}

// Halves go up.
function fixed(number, digits) {
    const power = 10 ** digits;
    return (Math.round(number * power) / power).toFixed(digits);
}

function twoDigits(number) {
    return String(number).padStart(2, '0');
}
