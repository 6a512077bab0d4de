#include "tools/quality_card.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/files.h"
#include "core/visible_text.h"
#include "tools/figure_text.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

// Of figures; names that come from files are not put through it.
__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return text;
}

Json or_null(const std::optional<double>& value) {
    return value ? Json(*value) : Json();
}

Json measured(const Measured& value) {
    return {{"mean", value.mean}, {"band", or_null(value.band)}};
}

// A name for a cell of a table.
std::string in_cell(const std::string& name) {
    std::string text;
    for (const char letter : visible_text(name))
        text += letter == '|' ? "\\|" : std::string(1, letter);
    return text;
}

Json quality_json(const KindQuality& quality) {
    return {{"kind", quality.kind},
            {"texts", quality.texts},
            {"positions", quality.positions},
            {"kl", measured(quality.kl)},
            {"agreement", measured(quality.agreement)},
            {"source_loss", measured(quality.source_loss)},
            {"loss", measured(quality.loss)},
            {"added_loss", measured(quality.added_loss)},
            {"source_perplexity", std::exp(quality.source_loss.mean)},
            {"perplexity", std::exp(quality.loss.mean)},
            {"control_tokens", quality.control},
            {"control_tokens_found_by_source", quality.control_source},
            {"control_tokens_found", quality.control_found},
            {"broken_bytes_of_source", quality.broken_source},
            {"broken_bytes", quality.broken},
            {"kl_of_text", quality.kl_of_text},
            {"positions_of_text", quality.positions_of_text}};
}

std::string counted(std::size_t count, const char* one) {
    return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

std::string report_markdown(const QuantizeReport& report) {
    std::string text =
        "| stored as | weights | MiB | relative error |\n| --- | --- | --- | --- |\n";
    for (const auto& [name, format] : report.formats) {
        text +=
            formatted("| %s | %zu | %.2f | %s |\n", name.c_str(), format.tensors,
                      static_cast<double>(format.bytes) / (1 << 20),
                      format.relative_error > 0 ? formatted("%.4f", format.relative_error).c_str()
                                                : "as it was");
    }
    if (report.layers.empty()) return text;
    text += "\nCalibrated with " + counted(report.calibration_texts, "text") + " of " +
            counted(report.calibration_tokens, "token") +
            ". Error of the matrices' outputs on them, relative to the outputs:\n\n"
            "| layer | matrices | calibrated | to the nearest | rows of an expert |\n"
            "| --- | --- | --- | --- | --- |\n";
    for (const QuantizeReport::Layer& layer : report.layers) {
        std::string rows = "-";
        if (!layer.expert_rows.empty()) {
            const auto [least, most] =
                std::minmax_element(layer.expert_rows.begin(), layer.expert_rows.end());
            rows = std::to_string(*least) + " to " + std::to_string(*most);
        }
        const auto error = [](const std::optional<double>& value) {
            return value ? formatted("%.4f", *value) : std::string("not measured");
        };
        text += formatted("| %zu | %zu | ", layer.index, layer.matrices) + error(layer.error) +
                " | " + error(layer.nearest_error) + " | " + rows + " |\n";
    }
    if (report.uncovered.empty()) {
        text += "\nEvery calibrated matrix saw enough rows.\n";
    } else {
        text += "\nRounded to the nearest for want of rows:\n\n";
        for (const std::string& name : report.uncovered)
            text += "- " + name + "\n";
    }
    return text;
}

std::optional<double> percent(const std::optional<double>& share) {
    return share ? std::optional(100 * *share) : std::nullopt;
}

std::string quality_markdown(const std::vector<KindQuality>& quality) {
    std::string text =
        "| kind | texts | positions | KL, nats | same top token | perplexity, source | perplexity "
        "| "
        "added loss |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (const KindQuality& kind : quality) {
        text +=
            "| " + in_cell(kind.kind) + formatted(" | %zu | %zu | ", kind.texts, kind.positions) +
            banded_text(kind.kl.mean, kind.kl.band, 5) + " | " +
            banded_text(100 * kind.agreement.mean, percent(kind.agreement.band), 2, false, " %") +
            formatted(" | %.3f | %.3f | ", std::exp(kind.source_loss.mean),
                      std::exp(kind.loss.mean)) +
            banded_text(kind.added_loss.mean, kind.added_loss.band, 5, true) + " |\n";
    }
    text +=
        "\n± is two standard errors over texts; a single one, or the same one again, shows none. "
        "Added loss is paired text "
        "by text.\n\n";
    text +=
        "| kind | top tokens that break UTF-8, source | here | control tokens | found by the "
        "source | "
        "found |\n| --- | --- | --- | --- | --- | --- |\n";
    for (const KindQuality& kind : quality) {
        text += "| " + in_cell(kind.kind) +
                formatted(" | %zu | %zu | %zu | %zu | %zu |\n", kind.broken_source, kind.broken,
                          kind.control, kind.control_source, kind.control_found);
    }
    return text;
}

constexpr Bytes largest_card = 64u << 20;
constexpr std::string_view text_heading = "## Texts\n";
constexpr std::string_view task_heading = "## Tasks\n";

// Of a card, what was measured on texts; `command` where another one made the rest.
std::string texts_markdown(const QualityCard& card, const std::string& command) {
    std::string text(text_heading);
    if (!command.empty()) text += "\n```sh\n" + command + "\n```\n";
    return text + "\nAgainst " + card.source.string() + " on " + card.texts + ":\n\n" +
           quality_markdown(card.quality);
}

std::string tasks_markdown(const TaskCard& card) {
    std::string text(task_heading);
    text += "\n```sh\n" + card.command + "\n```\n\nAgainst " + card.source + " on " + card.items +
            ":\n\n| task | items | source | here | difference, points |\n"
            "| --- | --- | --- | --- | --- |\n";
    for (const TaskDifference& task : card.tasks) {
        text += "| " + in_cell(task.task) +
                formatted(" | %zu | %.2f %% | %.2f %% | ", task.items, 100 * task.base,
                          100 * task.model) +
                banded_text(100 * task.difference, percent(task.band), 2, true) + " |\n";
    }
    return text + "\n± is the 95 % band of the difference, pair by pair.\n";
}

Json tasks_json(const TaskCard& card) {
    Json rows = Json::array();
    for (const TaskDifference& task : card.tasks) {
        rows.push_back({{"task", task.task},
                        {"items", task.items},
                        {"against", task.base},
                        {"model", task.model},
                        {"difference", task.difference},
                        {"band", or_null(task.band)}});
    }
    return {{"command", card.command},
            {"against", card.source},
            {"items", card.items},
            {"tasks", std::move(rows)}};
}

Json in_hex(const std::set<std::uint64_t>& numbers) {
    Json list = Json::array();
    for (const std::uint64_t number : numbers)
        list.push_back(formatted("%016llx", static_cast<unsigned long long>(number)));
    return list;
}

void read_hex(const Json& list, std::set<std::uint64_t>& numbers) {
    if (!list.is_array()) return;
    for (const Json& entry : list) {
        if (entry.is_string())
            numbers.insert(std::strtoull(entry.get<std::string>().c_str(), nullptr, 16));
    }
}

// What was measured on texts.
void add_texts(Json& json, const QualityCard& card) {
    json["texts"] = card.texts;
    json["quality"] = Json::array();
    for (const KindQuality& kind : card.quality)
        json["quality"].push_back(quality_json(kind));
}

// Commands and paths are bytes from outside: what is not UTF-8 is replaced, what is not ASCII is
// written as \u.
std::string to_text(const Json& json) {
    return json.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

// `page` with `section` in place of the one under the same heading.  What was measured on texts
// comes before the tasks.
std::string with_section(std::string page, std::string_view heading, const std::string& section) {
    const auto place_of = [&page](std::string_view of) {
        const std::size_t found = page.find("\n" + std::string(of));
        return found == page.npos ? page.size() : found + 1;
    };
    std::size_t first = place_of(heading);
    std::size_t last = first;
    if (first < page.size()) {
        const std::size_t next = page.find("\n## ", first);
        last = next == page.npos ? page.size() : next + 1;
    } else if (heading == text_heading) {
        first = last = place_of(task_heading);
    }
    if (page.empty()) page = "# Quality\n\n", first = last = page.size();
    std::string front = page.substr(0, first);
    const std::string behind = page.substr(last);
    if (!front.ends_with("\n\n")) front += "\n";
    return front + section + (behind.empty() ? "" : "\n") + behind;
}

// The text of a file, empty where there is none.
Result<std::string> text_if_there(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return std::string();
    return read_text_file(path, largest_card);
}

Status extend_card(const std::filesystem::path& folder, std::string_view heading,
                   const std::string& section, const std::function<void(Json&)>& add) {
    PERCHERON_ASSIGN(const std::string stored, text_if_there(folder / "quality.json"));
    Json json = stored.empty() ? Json::object() : Json::parse(stored, nullptr, false);
    if (!json.is_object()) {
        return Error(ErrorCode::corrupt, (folder / "quality.json").string() +
                                             ": is not a JSON object; remove it to begin anew");
    }
    add(json);
    PERCHERON_ASSIGN(std::string page, text_if_there(folder / "QUALITY.md"));
    PERCHERON_TRY(write_text_file(folder / "quality.json", to_text(json)));
    return write_text_file(folder / "QUALITY.md", with_section(std::move(page), heading, section));
}

}  // namespace

std::string card_json(const QualityCard& card) {
    Json json;
    if (!card.command.empty()) json["command"] = card.command;
    json["source"] = card.source.string();
    json["source_bytes"] = card.source_bytes;
    if (card.report != nullptr) {
        const QuantizeReport& report = *card.report;
        json["format"] = card.format;
        json["method"] = card.method;
        json["bytes"] = report.bytes;
        json["files"] = report.files;
        for (const auto& [name, format] : report.formats) {
            json["formats"][name] = {{"weights", format.tensors},
                                     {"bytes", format.bytes},
                                     {"relative_error", format.relative_error}};
        }
        json["calibration"] = {{"texts", report.calibration_texts},
                               {"tokens", report.calibration_tokens}};
        if (!report.calibration_marks.empty()) {
            json["calibration"]["marks"] = {
                {"texts", in_hex(report.calibration_marks.wholes)},
                {"beginnings", in_hex(report.calibration_marks.beginnings)}};
        }
        json["layers"] = Json::array();
        for (const QuantizeReport::Layer& layer : report.layers) {
            json["layers"].push_back({{"layer", layer.index},
                                      {"matrices", layer.matrices},
                                      {"error", or_null(layer.error)},
                                      {"nearest_error", or_null(layer.nearest_error)},
                                      {"expert_rows", layer.expert_rows}});
        }
        json["uncovered"] = report.uncovered;
    }
    if (!card.quality.empty()) add_texts(json, card);
    return to_text(json);
}

std::string card_markdown(const QualityCard& card) {
    std::string text = "# Quality\n\n";
    if (!card.command.empty()) text += "```sh\n" + card.command + "\n```\n\n";
    if (card.report != nullptr) {
        text +=
            formatted("%s by %s: %.2f MiB of weights made from %.2f MiB.\n\n", card.format.c_str(),
                      card.method.c_str(), static_cast<double>(card.report->bytes) / (1 << 20),
                      static_cast<double>(card.source_bytes) / (1 << 20));
        text += report_markdown(*card.report) + "\n";
    }
    if (!card.quality.empty()) text += texts_markdown(card, "");
    return text;
}

Status write_card(const std::filesystem::path& folder, const QualityCard& card) {
    PERCHERON_TRY(write_text_file(folder / "quality.json", card_json(card)));
    return write_text_file(folder / "QUALITY.md", card_markdown(card));
}

Status add_quality_to_card(const std::filesystem::path& folder, const QualityCard& card) {
    return extend_card(folder, text_heading, texts_markdown(card, card.command), [&](Json& json) {
        json["texts_command"] = card.command;
        add_texts(json, card);
    });
}

TextMarks calibration_marks(const std::filesystem::path& folder) {
    TextMarks marks;
    const auto stored = text_if_there(folder / "quality.json");
    if (!stored.ok()) return marks;
    const Json json = Json::parse(*stored, nullptr, false);
    const Json calibration = json.is_object() ? json.value("calibration", Json()) : Json();
    const Json listed = calibration.is_object() ? calibration.value("marks", Json()) : Json();
    if (!listed.is_object()) return marks;
    read_hex(listed.value("texts", Json()), marks.wholes);
    read_hex(listed.value("beginnings", Json()), marks.beginnings);
    return marks;
}

Status add_tasks_to_card(const std::filesystem::path& folder, const TaskCard& card) {
    return extend_card(folder, task_heading, tasks_markdown(card),
                       [&](Json& json) { json["tasks"] = tasks_json(card); });
}

}  // namespace percheron::tools
