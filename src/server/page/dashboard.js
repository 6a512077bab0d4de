// The dashboard: joins the server's figures, the charts and the table of requests.
import { Chart } from './chart.js';
import { bytesText, durationText, latencyText, rateText, shareText, wholeText } from './figures.js';
import { History } from './history.js';
import { KeyKeeper } from './key.js';
import { quantile, shareOf } from './metrics.js';
import { RequestTable, setText } from './request_table.js';
import { startTheme } from './theme_button.js';
import { Watch } from './watch.js';

const QUANTILES = [0.5, 0.9, 0.99];

class Dashboard {
    #history = new History();

    constructor(root) {
        this.root = root;
        this.keys = new KeyKeeper(root, () => this.watch.retry());
        this.watch = new Watch(this.keys, {
            onSample: (sample, time) => this.#show(sample, time),
            onTrouble: (sentence) => this.#fail(sentence),
        });
        this.charts = {
            prefill: new Chart(this.#element('prefill-chart'), 'Prefill'),
            decode: new Chart(this.#element('decode-chart'), 'Decode'),
        };
        this.table = new RequestTable(this.#element('requests'), this.#element('requests-note'));
        startTheme(this.#element('toggle-theme'));
        this.#element('pause').addEventListener('click', () => this.#togglePause());
        this.watch.start();
    }

    #element(id) {
        return this.root.getElementById(id);
    }

    #write(id, text) {
        setText(this.#element(id), text);
    }

    #togglePause() {
        this.watch.isPaused = !this.watch.isPaused;
        const button = this.#element('pause');
        const label = this.watch.isPaused ? 'Go on' : 'Pause';
        button.setAttribute('aria-label', label);
        button.title = label;
        button.querySelector('use').setAttribute('href', this.watch.isPaused ? '#icon-go' : '#icon-pause');
        if (this.watch.isPaused) this.#state('Paused', 'idle');
    }

    #state(text, state) {
        this.#write('state', text);
        this.#element('server-line').dataset.state = state;
    }

    #fail(sentence) {
        this.#state('No answer', 'down');
        const trouble = this.#element('trouble');
        setText(trouble, sentence);
        trouble.hidden = false;
    }

    #show(sample, time) {
        this.#history.add(sample, time);
        this.#element('trouble').hidden = true;
        const busy = sample.running > 0 || sample.waiting > 0;
        if (sample.draining) this.#state('Shutting down', 'down');
        else if (!this.watch.isPaused) this.#state(busy ? 'Working' : 'Idle', busy ? 'busy' : 'idle');
        this.#showFigures(sample);
        this.#showShares(sample, this.#history.earlier);
        this.#showLatencies(sample);
        this.#showReplies(sample.replies);
        for (const [name, chart] of Object.entries(this.charts)) {
            chart.show(this.#history.points.map((point) => ({ time: point.time, value: point[name] })));
        }
        this.table.show(sample.requests, sample.leftOut);
    }

    #showFigures(sample) {
        this.#write('model-name', sample.model);
        this.#write('uptime', `up ${durationText(sample.uptime)}`);
        this.#write('running', wholeText(sample.running));
        this.#write('waiting', wholeText(sample.waiting));
        this.#write('prefill', rateText(sample.prefill));
        this.#write('decode', rateText(sample.decode));
        const used = shareOf(sample.kvUsed, sample.kvTotal);
        this.#write('kv', shareText(used));
        this.#write('kv-tokens', `${wholeText(sample.kvUsed)} of ${wholeText(sample.kvTotal)} tokens`);
        this.#element('kv-bar').style.width = `${(used ?? 0) * 100}%`;
        this.#write('context', wholeText(sample.context));
        this.#write('checkpoints', wholeText(sample.checkpoints));
        this.#write('memory', bytesText(sample.resident));
        this.#write('images', `${wholeText(sample.imagesEncoded)} encoded, ` +
            `${wholeText(sample.imagesReused)} reused`);
        this.#write('disconnects', wholeText(sample.disconnects));
        this.#write('loops', wholeText(sample.loops));
        this.#write('preemptions', wholeText(sample.preemptions));
    }

    // Since the server's start, and of that the last minute.
    #showShares(now, earlier) {
        const show = (id, part, whole) => {
            this.#write(id, shareText(shareOf(now[part], now[whole])));
            const recent = shareOf(now[part] - earlier[part], now[whole] - earlier[whole]);
            this.#write(`${id}-recent`, `last minute ${shareText(recent)}`);
        };
        show('cache', 'cacheHits', 'cacheQueries');
        show('acceptance', 'accepted', 'drafted');
    }

    #showLatencies(sample) {
        const rows = this.#element('latencies').rows;
        [sample.firstToken, sample.nextToken, sample.wholeRequest].forEach((histogram, row) => {
            QUANTILES.forEach((share, column) => {
                setText(rows[row].cells[column + 1], latencyText(quantile(histogram, share)));
            });
            setText(rows[row].cells[QUANTILES.length + 1], wholeText(histogram.count));
        });
    }

    // A status stands there once it has been answered.
    #showReplies(replies) {
        const list = this.#element('replies');
        for (const [status, count] of replies) {
            if (count === 0 && status !== '200') continue;
            let row = list.querySelector(`[data-status="${CSS.escape(status)}"]`);
            if (!row) {
                row = document.createElement('div');
                row.dataset.status = status;
                row.append(document.createElement('dt'), document.createElement('dd'));
                const next = [...list.children].find((other) => other.dataset.status > status);
                list.insertBefore(row, next ?? null);
            }
            setText(row.firstChild, `Status ${status}`);
            setText(row.lastChild, wholeText(count));
        }
    }
}

new Dashboard(document);
