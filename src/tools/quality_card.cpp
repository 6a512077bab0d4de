#include "tools/quality_card.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "core/files.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return text;
}

Json measured(const Measured& value) {
    return {{"mean", value.mean}, {"band", value.band}};
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
    text += formatted(
        "\nCalibrated with %zu texts of %zu tokens. Error of the matrices' outputs on them, "
        "relative "
        "to the outputs:\n\n| layer | matrices | calibrated | to the nearest | rows of an expert "
        "|\n| --- | --- | --- | --- | --- |\n",
        report.calibration_texts, report.calibration_tokens);
    for (const QuantizeReport::Layer& layer : report.layers) {
        std::string rows = "-";
        if (!layer.expert_rows.empty()) {
            const auto [least, most] =
                std::minmax_element(layer.expert_rows.begin(), layer.expert_rows.end());
            rows = std::to_string(*least) + " to " + std::to_string(*most);
        }
        text += formatted("| %zu | %zu | %.4f | %.4f | %s |\n", layer.index, layer.matrices,
                          layer.error, layer.nearest_error, rows.c_str());
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

std::string quality_markdown(const std::vector<KindQuality>& quality) {
    std::string text =
        "| kind | texts | positions | KL, nats | same top token | perplexity, source | perplexity "
        "| "
        "added loss |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (const KindQuality& kind : quality) {
        text += formatted(
            "| %s | %zu | %zu | %.5f ± %.5f | %.2f ± %.2f %% | %.3f | %.3f | %+.5f ± %.5f |\n",
            kind.kind.c_str(), kind.texts, kind.positions, kind.kl.mean, kind.kl.band,
            100 * kind.agreement.mean, 100 * kind.agreement.band, std::exp(kind.source_loss.mean),
            std::exp(kind.loss.mean), kind.added_loss.mean, kind.added_loss.band);
    }
    text += "\n± is two standard errors over texts. Added loss is paired text by text.\n\n";
    text +=
        "| kind | top tokens that break UTF-8, source | here | control tokens | found by the "
        "source | "
        "found |\n| --- | --- | --- | --- | --- | --- |\n";
    for (const KindQuality& kind : quality) {
        text += formatted("| %s | %zu | %zu | %zu | %zu | %zu |\n", kind.kind.c_str(),
                          kind.broken_source, kind.broken, kind.control, kind.control_source,
                          kind.control_found);
    }
    return text;
}

constexpr Bytes largest_card = 64u << 20;
constexpr const char* task_heading = "## Tasks\n";

std::string tasks_markdown(const TaskCard& card) {
    std::string text = task_heading;
    text += "\n```sh\n" + card.command + "\n```\n\nAgainst " + card.source + " on " + card.items +
            ":\n\n| task | items | source | here | difference, points |\n"
            "| --- | --- | --- | --- | --- |\n";
    for (const TaskDifference& task : card.tasks) {
        text += formatted("| %s | %zu | %.2f %% | %.2f %% | %+.2f ± %.2f |\n", task.task.c_str(),
                          task.items, 100 * task.base, 100 * task.model, 100 * task.difference,
                          100 * task.band);
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
                        {"band", task.band}});
    }
    return {{"command", card.command},
            {"against", card.source},
            {"items", card.items},
            {"tasks", std::move(rows)}};
}

// The text of a file, empty where there is none.
Result<std::string> text_if_there(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return std::string();
    return read_text_file(path, largest_card);
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
        json["layers"] = Json::array();
        for (const QuantizeReport::Layer& layer : report.layers) {
            json["layers"].push_back({{"layer", layer.index},
                                      {"matrices", layer.matrices},
                                      {"error", layer.error},
                                      {"nearest_error", layer.nearest_error},
                                      {"expert_rows", layer.expert_rows}});
        }
        json["uncovered"] = report.uncovered;
    }
    if (!card.quality.empty()) {
        json["texts"] = card.texts;
        json["quality"] = Json::array();
        for (const KindQuality& kind : card.quality)
            json["quality"].push_back(quality_json(kind));
    }
    return json.dump(1) + "\n";
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
    if (!card.quality.empty()) {
        text += "Against its source on " + card.texts + ":\n\n" + quality_markdown(card.quality);
    }
    return text;
}

Status write_card(const std::filesystem::path& folder, const QualityCard& card) {
    PERCHERON_TRY(write_text_file(folder / "quality.json", card_json(card)));
    return write_text_file(folder / "QUALITY.md", card_markdown(card));
}

Status add_tasks_to_card(const std::filesystem::path& folder, const TaskCard& card) {
    PERCHERON_ASSIGN(const std::string stored, text_if_there(folder / "quality.json"));
    Json json = stored.empty() ? Json::object() : Json::parse(stored, nullptr, false);
    if (!json.is_object()) {
        return Error(ErrorCode::corrupt, (folder / "quality.json").string() +
                                             ": is not a JSON object; remove it to begin anew");
    }
    json["tasks"] = tasks_json(card);
    PERCHERON_ASSIGN(std::string page, text_if_there(folder / "QUALITY.md"));
    page = page.substr(0, page.find(task_heading));
    if (page.empty()) page = "# Quality\n\n";
    if (!page.ends_with("\n\n")) page += "\n";
    PERCHERON_TRY(write_text_file(folder / "quality.json", json.dump(1) + "\n"));
    return write_text_file(folder / "QUALITY.md", page + tasks_markdown(card));
}

}  // namespace percheron::tools
