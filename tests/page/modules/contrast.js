// Contrast of every visible piece of text against what lies behind it, by the WCAG formula:
// {count, found}, where `found` names the pieces below 4.5.
(() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });

    function channels(colour) {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    }

    function luminance(colour) {
        const [red, green, blue] = colour.map((channel) => {
            const value = channel / 255;
            return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    }

    function behind(node) {
        for (; node; node = node.parentElement) {
            const colour = channels(getComputedStyle(node).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255, 255];
    }

    let count = 0;
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.data.trim();
        const parent = walker.currentNode.parentElement;
        if (text === '' || !parent.checkVisibility({ checkOpacity: true })) continue;
        if (parent.closest('.hidden-label, noscript')) continue;
        count += 1;
        const pair = [luminance(channels(getComputedStyle(parent).color)), luminance(behind(parent))];
        const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${parent.className} ${text.slice(0, 40)}`);
    }
    return { count, found };
})()
