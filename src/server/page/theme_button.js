// The theme button: as the system has it, light, dark.  theme.js applies the choice at load.
import { remember } from './storage.js';

const THEMES = ['system', 'light', 'dark'];

export function startTheme(button) {
    const show = (theme) => {
        if (theme === 'system') delete document.documentElement.dataset.theme;
        else document.documentElement.dataset.theme = theme;
        button.querySelector('use').setAttribute('href', `#icon-${theme}`);
        button.title = `Theme: ${theme}`;
        button.setAttribute('aria-label', `Theme: ${theme}`);
    };
    let theme = document.documentElement.dataset.theme ?? 'system';
    show(theme);
    button.addEventListener('click', () => {
        theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
        remember('percheron.theme', theme);
        show(theme);
    });
}
