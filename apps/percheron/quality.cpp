// percheron quality: how a checkpoint differs from another one on texts.
#include <cmath>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "command_line.h"
#include "commands.h"
#include "core/visible_text.h"
#include "measured_quality.h"
#include "number_checks.h"
#include "tools/figure_text.h"
#include "tools/model_path.h"
#include "tools/model_source.h"
#include "tools/quality_card.h"

namespace percheron::apps {
namespace {

struct Arguments {
    std::string model;
    std::string against;
    std::string texts;
    std::string device = "auto";
    tools::CalibrationLimits limits;
    std::size_t threads = 0;
    bool fp4_activations = false;
    bool json = false;
    bool card = false;
};

Status run(const Arguments& arguments) {
    PERCHERON_ASSIGN(const auto model, tools::resolve_model(arguments.model));
    PERCHERON_ASSIGN(const auto source, tools::resolve_model(arguments.against));
    PERCHERON_ASSIGN(const model::ModelConfig config, tools::read_model_config(source));
    if (arguments.card && tools::is_synthetic(model.string())) {
        return Error(ErrorCode::invalid_argument,
                     arguments.model + ": has no folder for a card; leave out --card");
    }
    PERCHERON_ASSIGN(
        const auto texts,
        tools::read_calibration(arguments.texts, source, config.vocabulary, arguments.limits));
    if (arguments.card) {
        const tools::TextMarks used = tools::calibration_marks(model);
        if (!used.empty() && !tools::is_marked_length(arguments.limits.length)) {
            return Error(
                ErrorCode::invalid_argument,
                fmt::format("--length {}: with --card texts are cut to a multiple of 32 "
                            "from 64 to 512 tokens or to a power of two, so that those {} was "
                            "calibrated with are known again",
                            arguments.limits.length, arguments.model));
        }
        if (const std::size_t seen = tools::texts_among(used, texts); seen > 0) {
            return Error(ErrorCode::invalid_argument,
                         fmt::format("--texts {}: {} of its {} texts are among those that {} was "
                                     "calibrated with, and would say nothing about others; leave "
                                     "them out, or leave out --card",
                                     arguments.texts, seen, texts.size(), arguments.model));
        }
    }
    tools::QualityCard card;
    card.command = command_line();
    card.source = arguments.against;
    card.texts = arguments.texts;
    PERCHERON_ASSIGN(card.quality, measure_quality(source, model, texts, arguments.device,
                                                   arguments.threads, arguments.fp4_activations));
    if (arguments.card) PERCHERON_TRY(tools::add_quality_to_card(model, card));
    if (arguments.json) {
        std::fputs(tools::card_json(card).c_str(), stdout);
    } else {
        print_quality(card.quality);
    }
    return {};
}

}  // namespace

Result<std::vector<tools::KindQuality>> measure_quality(
    const std::filesystem::path& source, const std::filesystem::path& other,
    const std::vector<tools::CalibrationText>& texts, const std::string& device,
    std::size_t threads, bool fp4_activations) {
    PERCHERON_ASSIGN(const std::filesystem::path text, tools::text_folder(source));
    PERCHERON_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
    tools::QualityOptions options;
    options.source = source;
    options.other = other;
    options.device = device;
    options.threads = threads;
    options.fp4_activations = fp4_activations;
    if (isatty(STDERR_FILENO) != 0) {
        options.progress = [](std::size_t done, std::size_t total) {
            std::fprintf(stderr, "\r%zu of %zu positions%s", done, total,
                         done == total ? "\n" : "");
        };
    }
    return tools::compare_quality(texts, tokenizer, options);
}

void print_quality(const std::vector<tools::KindQuality>& quality) {
    fmt::print("{:<12} {:>5} {:>9} {:>18} {:>15} {:>10} {:>10} {:>19} {:>13} {:>13}\n", "kind",
               "texts", "positions", "KL", "same top, %", "ppl source", "ppl", "added loss",
               "broken bytes", "control tags");
    for (const tools::KindQuality& kind : quality) {
        tools::Measured agreement{100 * kind.agreement.mean, {}};
        if (kind.agreement.band) agreement.band = 100 * *kind.agreement.band;
        fmt::print("{:<12} {:>5} {:>9} {:>18} {:>15} {:>10.3f} {:>10.3f} {:>19} {:>13} {:>13}\n",
                   visible_text(kind.kind), kind.texts, kind.positions,
                   tools::banded_text(kind.kl.mean, kind.kl.band, 5),
                   tools::banded_text(agreement.mean, agreement.band, 2),
                   std::exp(kind.source_loss.mean), std::exp(kind.loss.mean),
                   tools::banded_text(kind.added_loss.mean, kind.added_loss.band, 5, true),
                   fmt::format("{}/{}", kind.broken, kind.broken_source),
                   fmt::format("{}/{}", kind.control_found, kind.control_source));
    }
}

void add_quality(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = app.add_subcommand(
        "quality", "KL divergence, agreement and perplexity of a checkpoint against its source");
    command->footer(
        "FILE.jsonl is as for `percheron quantize --calibration`, with a \"kind\" a line; use "
        "texts "
        "that\nno calibration has seen.  Bands are two standard errors over texts.\n\n"
        "Example: percheron quality nano-w4a16 --against nano --texts held-out.jsonl");
    command->add_option("MODEL", arguments->model, "Model folder")->required();
    command->add_option("--against", arguments->against, "Folder of the source")->required();
    command->add_option("--texts", arguments->texts, "FILE.jsonl")->required();
    command->add_option("--tokens", arguments->limits.tokens, "Tokens of all texts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--length", arguments->limits.length, "Tokens of a text")
        ->check(positive_number())
        ->capture_default_str();
    command->add_flag("--fp4-activations", arguments->fp4_activations,
                      "Round inputs of MODEL's NVFP4 weights to FP4 (W4A4)");
    command->add_flag("--card", arguments->card,
                      "Put the figures into QUALITY.md and quality.json of MODEL's folder");
    command->add_flag("--json", arguments->json, "Every figure as JSON");
    command->add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N")
        ->capture_default_str();
    command->add_option("--threads", arguments->threads, "Threads that compute (default: all)");
    command->callback(
        [arguments, &exit_code] { exit_code = exit_code_of(run(*arguments), "quality"); });
}

}  // namespace percheron::apps
