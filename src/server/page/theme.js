// Applies the chosen theme before the first paint; loaded ahead of the modules for that reason.
try {
    const theme = localStorage.getItem('percheron.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
    // A browser that keeps nothing follows the system's theme.
}
