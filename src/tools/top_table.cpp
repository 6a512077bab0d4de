#include "tools/top_table.h"

#include <algorithm>
#include <array>

#include "tools/figure_text.h"

namespace percheron::tools {
namespace {

constexpr std::string_view cell_gap = "  ";
constexpr std::size_t shortest_id = 8;

struct Column {
    const char* heading;
    std::size_t columns;  // at least
    int importance;       // 1 goes last when room is short
    bool right;           // numbers end below one another
    std::string (*text)(const RequestSample&);
};

// "chatcmpl-39f5…" by the part that tells it from others.
std::string short_id(const RequestSample& request) {
    const std::string id = printable(request.id);
    return id.substr(id.rfind('-') + 1);
}

std::string acceptance(const RequestSample& request) {
    const auto share = share_of(request.accepted, request.drafted);
    return share ? share_text(*share) : "-";
}

const std::array<Column, 10> all_columns{{
    {"REQUEST", shortest_id, 1, false, short_id},
    {"ROUTE", 20, 9, false, [](const RequestSample& r) { return printable(r.route); }},
    {"PHASE", 8, 2, false, [](const RequestSample& r) { return printable(r.phase); }},
    {"N", 2, 10, true, [](const RequestSample& r) { return whole_text(r.choices); }},
    {"PROMPT", 9, 6, true, [](const RequestSample& r) { return whole_text(r.prompt_tokens); }},
    {"CACHED", 9, 7, true, [](const RequestSample& r) { return whole_text(r.cached_tokens); }},
    {"TOKENS", 9, 3, true, [](const RequestSample& r) { return whole_text(r.generated_tokens); }},
    {"TOK/S", 8, 4, true, [](const RequestSample& r) { return rate_text(r.tokens_per_second); }},
    {"TIME", 10, 5, true, [](const RequestSample& r) { return duration_text(r.seconds); }},
    {"ACCEPTED", 8, 8, true, acceptance},
}};

struct Chosen {
    const Column* column = nullptr;
    std::size_t columns = 0;
};

std::size_t longest(const Column& column, const std::vector<RequestSample>& requests) {
    std::size_t most = 0;
    for (const RequestSample& request : requests)
        most = std::max(most, columns_of(column.text(request)));
    return most;
}

// The most important columns that fit, in the order of the table; what is left goes to text that
// is cut short, ids first.
std::vector<Chosen> choose(std::size_t room, const std::vector<RequestSample>& requests) {
    std::array<bool, all_columns.size()> taken{};
    std::size_t used = 0;
    for (int importance = 1; importance <= static_cast<int>(all_columns.size()); ++importance) {
        const auto column = std::find_if(all_columns.begin(), all_columns.end(),
                                         [&](const auto& c) { return c.importance == importance; });
        const std::size_t more = column->columns + (used > 0 ? cell_gap.size() : 0);
        if (used > 0 && used + more > room) break;
        taken[static_cast<std::size_t>(column - all_columns.begin())] = true;
        used += more;
    }
    std::vector<Chosen> chosen;
    for (std::size_t i = 0; i < all_columns.size(); ++i) {
        if (taken[i]) chosen.push_back({&all_columns[i], all_columns[i].columns});
    }
    for (Chosen& one : chosen) {
        if (one.column->right || room <= used) continue;
        const std::size_t wanted = longest(*one.column, requests);
        const std::size_t more = std::min(room - used, wanted - std::min(wanted, one.columns));
        one.columns += more;
        used += more;
    }
    return chosen;
}

// In exactly so many columns; text that is too long is cut, a number too long pushes the rest.
std::string padded(std::string text, const Chosen& chosen) {
    const std::size_t size = columns_of(text);
    if (size > chosen.columns && !chosen.column->right) {
        return std::string(first_columns(text, chosen.columns));
    }
    const std::string blanks(chosen.columns - std::min(size, chosen.columns), ' ');
    return chosen.column->right ? blanks + text : text + blanks;
}

template <class TextOf>
std::string table_line(const std::vector<Chosen>& chosen, TextOf text_of) {
    std::string line;
    for (const Chosen& one : chosen) {
        if (!line.empty()) line += cell_gap;
        line += padded(text_of(*one.column), one);
    }
    return line;
}

}  // namespace

void add_request_table(StyledLines& lines, const ServerSample& sample) {
    const std::vector<RequestSample>& requests = sample.requests;
    if (requests.empty()) {
        lines.add({{"Nothing runs or waits.", Style::label}});
        return;
    }
    const double all = static_cast<double>(requests.size()) + sample.requests_left_out;
    // A heading over a single line or none shows less than their number.
    if (lines.rows_left() < 3 && static_cast<double>(lines.rows_left()) < all + 1) {
        lines.add({{whole_text(all) + " requests", Style::plain}});
        return;
    }
    const std::vector<Chosen> chosen = choose(lines.columns(), requests);
    lines.add(
        {{table_line(chosen, [](const Column& column) { return std::string(column.heading); }),
          Style::heading}});
    // The last line is kept for what the table has no room for.
    const std::size_t room = lines.rows_left();
    const bool all_fit = requests.size() <= room && sample.requests_left_out == 0;
    const std::size_t shown =
        all_fit ? requests.size()
                : std::min(requests.size(), room - std::min<std::size_t>(room, 1));
    for (std::size_t i = 0; i < shown; ++i) {
        lines.add(
            {{table_line(chosen, [&](const Column& column) { return column.text(requests[i]); }),
              Style::plain}});
    }
    const double more = all - static_cast<double>(shown);
    if (more > 0) lines.add({{"and " + whole_text(more) + " more", Style::label}});
}

}  // namespace percheron::tools
