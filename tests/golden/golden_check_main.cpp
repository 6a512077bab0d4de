// golden_check MODEL GOLDEN_DIR [--backend reference|cpu|cuda|cuda:N] [--arithmetic fp32|standard]
//              [--kv-dtype auto|bf16|fp8] [--only PROMPT]
// Prints every figure; exits with 1 when one is short.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "golden/golden_check.h"
#include "golden/mtp_check.h"
#include "ops/reference/reference_backend.h"
#include "tools/devices.h"

namespace percheron::tests {
namespace {

struct Arguments {
    std::string model, golden, only;
    std::string backend = "cpu";
    std::string kv_dtype = "auto";
    ops::Arithmetic arithmetic = ops::Arithmetic::fp32;
};

bool parse(int argc, char** argv, Arguments& out) {
    std::vector<std::string> places;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (!word.starts_with("--")) {
            places.push_back(word);
            continue;
        }
        if (i + 1 == argc) return false;
        const std::string value = argv[++i];
        if (word == "--backend" && (value == "reference" || tools::is_device_name(value))) {
            out.backend = value;
        } else if (word == "--arithmetic" && (value == "fp32" || value == "standard")) {
            out.arithmetic = value == "fp32" ? ops::Arithmetic::fp32 : ops::Arithmetic::standard;
        } else if (word == "--kv-dtype") {
            out.kv_dtype = value;
        } else if (word == "--only") {
            out.only = value;
        } else {
            return false;
        }
    }
    if (places.size() != 2) return false;
    out.model = places[0];
    out.golden = places[1];
    return true;
}

Result<std::unique_ptr<ops::Backend>> backend_of(const Arguments& arguments,
                                                 const model::ModelConfig& config,
                                                 std::size_t rows) {
    if (arguments.backend == "reference") {
        return std::unique_ptr<ops::Backend>(
            ops::reference::make_reference_backend(arguments.arithmetic));
    }
    return tools::make_backend({arguments.backend, 0, arguments.arithmetic}, config, rows);
}

Status run(const Arguments& arguments, bool& met) {
    PERCHERON_ASSIGN(const auto checkpoint, checkpoint::Checkpoint::open(arguments.model));
    PERCHERON_ASSIGN(const GoldenFile golden, GoldenFile::open(arguments.golden));
    GoldenOptions options;
    PERCHERON_ASSIGN(const auto backend,
                     backend_of(arguments, checkpoint->config(), options.chunk));
    options.only = arguments.only;
    options.kv_dtype = arguments.kv_dtype;
    options.progress = [](const std::string& prompt, const GoldenFigures& figures) {
        std::printf("%s: %s\n", prompt.c_str(), figures.to_string().c_str());
        std::fflush(stdout);
    };
    PERCHERON_ASSIGN(const GoldenFigures total,
                     check_golden(*checkpoint, *backend, golden, options));
    std::printf("all, %s, %s arithmetic: %s", std::string(backend->name()).c_str(),
                arguments.arithmetic == ops::Arithmetic::fp32 ? "fp32" : "standard",
                total.to_string().c_str());
    auto sentences = shortcomings(total, arguments.arithmetic, arguments.kv_dtype == "fp8");
    if (checkpoint->config().mtp_layers > 0 && backend->mtp() != nullptr) {
        PERCHERON_ASSIGN(const MtpFigures mtp,
                         check_mtp(*checkpoint, *backend, golden, MtpInput::trunk, 512));
        std::printf(
            "MTP layer: %zu rows, hidden max|d|/RMS %.3g, last logits %.3g, top logits "
            "%.3g, top token %zu of %zu\n",
            mtp.rows, mtp.hidden, mtp.logits, mtp.top_logits, mtp.top_equal, mtp.rows);
        if (arguments.arithmetic == ops::Arithmetic::fp32 &&
            !(mtp.hidden <= 1e-3 && mtp.logits <= 1e-3)) {
            sentences.push_back("The MTP layer differs by more than 1e-3 of the golden RMS.");
        }
    }
    for (const std::string& sentence : sentences) {
        std::printf("SHORT: %s\n", sentence.c_str());
    }
    met = sentences.empty();
    std::printf("%s\n", met ? "met" : "not met");
    return {};
}

}  // namespace
}  // namespace percheron::tests

int main(int argc, char** argv) {
    percheron::tests::Arguments arguments;
    if (!percheron::tests::parse(argc, argv, arguments)) {
        std::fprintf(stderr,
                     "usage: golden_check MODEL GOLDEN_DIR [--backend reference|cpu|cuda|cuda:N] "
                     "[--arithmetic fp32|standard] [--only PROMPT]\n");
        return 2;
    }
    bool met = false;
    const percheron::Status status = percheron::tests::run(arguments, met);
    if (!status.ok()) {
        std::fprintf(stderr, "golden_check: %s\n", status.error().message().c_str());
        return 1;
    }
    return met ? 0 : 1;
}
