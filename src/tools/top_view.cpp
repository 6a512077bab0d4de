#include "tools/top_view.h"

#include <algorithm>
#include <cmath>

#include "tools/figure_text.h"
#include "tools/styled_lines.h"
#include "tools/top_table.h"

namespace percheron::tools {
namespace {

constexpr std::size_t widest_sparkline = 60;

std::string share_or_dash(std::optional<double> share) {
    return share ? share_text(*share) : "-";
}

Item item(std::string label, std::string value) {
    return {
        {{std::move(label), Style::label}, {" ", Style::plain}, {std::move(value), Style::plain}}};
}

std::string sparkline(const std::vector<double>& values, std::size_t columns, bool unicode) {
    static constexpr std::string_view blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static constexpr std::string_view ascii[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
    const std::size_t first = values.size() - std::min(values.size(), columns);
    double most = 0;
    for (std::size_t i = first; i < values.size(); ++i)
        most = std::max(most, values[i]);
    std::string line(columns - (values.size() - first), ' ');
    for (std::size_t i = first; i < values.size(); ++i) {
        const double share = most > 0 ? std::max(values[i], 0.0) / most : 0.0;
        // Nothing stays at the bottom, anything stands above it.
        const auto level = static_cast<std::size_t>(std::ceil(share * 7));
        line += unicode ? blocks[std::min<std::size_t>(level, 7)]
                        : ascii[std::min<std::size_t>(level, 7)];
    }
    return line;
}

// Names from outside may hold more than ASCII.
std::string ascii_of(std::string_view text) {
    std::string ascii;
    while (!text.empty()) {
        const std::string_view letter = first_columns(text, 1);
        ascii += letter.size() == 1 ? letter : std::string_view("?");
        text.remove_prefix(letter.size());
    }
    return ascii;
}

Item rate_item(const char* label, double rate, const std::vector<double>& history,
               const TopLook& look) {
    Item made = item(label, rate_text(rate) + " tok/s");
    // Two rates stand beside each other where there is room.
    const std::size_t half = look.columns / 2;
    const std::size_t room = half > 30 ? half - 30 : 0;
    const std::size_t columns = std::min(room, widest_sparkline);
    if (columns >= 8) {
        made.spans.push_back({" ", Style::plain});
        made.spans.push_back({sparkline(history, columns, look.unicode), Style::accent});
    }
    return made;
}

Item share_item(const char* label, double part, double whole, double part_before,
                double whole_before) {
    Item made = item(label, share_or_dash(share_of(part, whole)));
    const auto recent = share_of(part - part_before, whole - whole_before);
    if (recent) {
        made.spans.push_back({" (last minute " + share_text(*recent) + ")", Style::label});
    }
    return made;
}

Item latency_item(const char* label, const HistogramSample& histogram) {
    std::string text;
    for (const double share : {0.5, 0.9, 0.99}) {
        const auto value = histogram.quantile(share);
        text += (text.empty() ? "" : " / ") + (value ? latency_text(*value) : std::string("-"));
    }
    return item(label, text);
}

std::vector<Item> header(const TopState& state, const TopLook& look) {
    std::vector<Item> items{{{{"percheron top", Style::strong}}}};
    if (state.now) items.push_back({{{printable(state.now->model), Style::strong}}});
    items.push_back({{{printable(state.url), Style::plain}}});
    if (state.now) {
        items.push_back(item("context", whole_text(state.now->context_tokens)));
        items.push_back(item("up", duration_text(state.now->uptime_seconds)));
        if (state.now->draining) items.push_back({{{"shutting down", Style::warning}}});
    }
    if (look.keys) items.push_back(item("q", "quits"));
    return items;
}

std::vector<Item> load(const ServerSample& now) {
    const auto used = share_of(now.kv_used, now.kv_total);
    return {item("running", whole_text(now.running)), item("waiting", whole_text(now.waiting)),
            item("KV", whole_text(now.kv_used) + " of " + whole_text(now.kv_total) + " tokens (" +
                           share_or_dash(used) + ")"),
            item("checkpoints", whole_text(now.checkpoints)),
            item("memory", bytes_text(now.resident_bytes))};
}

std::vector<Item> shares(const ServerSample& now, const ServerSample& earlier) {
    return {share_item("cache hits", now.cache_hits, now.cache_queries, earlier.cache_hits,
                       earlier.cache_queries),
            share_item("draft acceptance", now.accepted, now.drafted, earlier.accepted,
                       earlier.drafted),
            item("images", whole_text(now.images_encoded) + " encoded, " +
                               whole_text(now.images_reused) + " reused")};
}

// What went wrong so far; a status stands there once it has been answered.
std::vector<Item> outcomes(const ServerSample& now) {
    std::vector<Item> items;
    for (const auto& [status, count] : now.replies) {
        if (count > 0 || status == "200") {
            items.push_back(item("status " + printable(status), whole_text(count)));
            if (status >= "400") items.back().spans.back().style = Style::warning;
        }
    }
    items.push_back(item("disconnects", whole_text(now.disconnects)));
    items.push_back(item("loops", whole_text(now.loops)));
    items.push_back(item("preemptions", whole_text(now.preemptions)));
    return items;
}

std::vector<Item> latencies(const ServerSample& now) {
    return {{{{"50 / 90 / 99 %", Style::label}}},
            latency_item("first token", now.first_token),
            latency_item("next token", now.between_tokens),
            latency_item("whole request", now.whole_request)};
}

}  // namespace

std::vector<std::string> render_top(const TopState& state, const TopLook& look) {
    StyledLines lines(look.columns, look.rows);
    lines.flow(header(state, look));
    if (!state.trouble.empty()) lines.wrap(printable(state.trouble), Style::warning);
    if (state.now) {
        const ServerSample& now = *state.now;
        lines.flow(load(now));
        lines.flow({rate_item("prefill", now.prefill_per_second, state.prefill_rates, look),
                    rate_item("decode", now.decode_per_second, state.decode_rates, look)});
        lines.flow(shares(now, state.earlier.value_or(now)));
        lines.flow(latencies(now));
        lines.flow(outcomes(now));
        lines.add({});
        add_request_table(lines, now);
    }
    std::vector<std::string> text = lines.text(look.colour);
    if (!look.unicode) {
        for (std::string& line : text)
            line = ascii_of(line);
    }
    return text;
}

std::string render_top_line(const ServerSample& now) {
    return "up " + duration_text(now.uptime_seconds) + "  running " + whole_text(now.running) +
           "  waiting " + whole_text(now.waiting) + "  prefill " +
           rate_text(now.prefill_per_second) + " tok/s  decode " +
           rate_text(now.decode_per_second) + " tok/s  KV " +
           share_or_dash(share_of(now.kv_used, now.kv_total)) + "  cache hits " +
           share_or_dash(share_of(now.cache_hits, now.cache_queries)) + "  draft acceptance " +
           share_or_dash(share_of(now.accepted, now.drafted));
}

}  // namespace percheron::tools
