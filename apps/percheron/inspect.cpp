// percheron inspect: what a checkpoint holds, and whether it will run.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/inventory.h"
#include "commands.h"
#include "core/visible_text.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

using checkpoint::FormatTally;
using checkpoint::Inventory;

struct Arguments {
    std::string model;
    bool json = false;
    bool values = false;
};

void print_json(const Inventory& inventory) {
    nlohmann::ordered_json json;
    json["runnable"] = inventory.runnable();
    json["reasons"] = nlohmann::ordered_json::array();
    for (const Error& problem : inventory.problems) {
        json["reasons"].push_back(problem.message());
    }
    json["formats"] = nlohmann::ordered_json::object();
    for (const auto& [name, tally] : inventory.formats) {
        json["formats"][name] = {{"tensors", tally.tensors}, {"bytes", tally.bytes}};
    }
    json["ignored"] = inventory.ignored.size();
    json["unclassified"] = inventory.unclassified.size();
    json["mtp"] = inventory.mtp;
    json["vision"] = inventory.vision;
    json["files"] = nlohmann::ordered_json::array();
    for (const Inventory::File& file : inventory.files) {
        json["files"].push_back(file.name);
    }
    json["disagreements"] = nlohmann::ordered_json::array();
    for (const checkpoint::Disagreement& disagreement : inventory.disagreements) {
        json["disagreements"].push_back(
            {{"config", disagreement.config},
             {"what", disagreement.what},
             {"weights", disagreement.weights.size()},
             {"names", checkpoint::folded_names(disagreement.weights)}});
    }
    json["warnings"] = inventory.warnings;
    // Names and paths are bytes from outside: what is not UTF-8 is replaced, what is not ASCII is
    // written as \u.
    std::printf("%s\n", json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace).c_str());
}

void print_tally(const std::string& label, const std::string& format, const FormatTally& tally) {
    std::printf("  %-18s %-10s %8zu %14.2f\n", label.c_str(), format.c_str(), tally.tensors,
                static_cast<double>(tally.bytes) / (1024.0 * 1024.0));
}

void print_table(const std::string& folder, const Inventory& inventory) {
    std::printf("%s\n%s\n\n", visible_text(folder).c_str(), summary(inventory).c_str());
    std::printf("  %-18s %-10s %8s %14s\n", "part", "format", "tensors", "MiB");
    for (const auto& [part, formats] : inventory.parts) {
        for (const auto& [format, tally] : formats) {
            print_tally(std::string(name_of(part)), format, tally);
        }
    }
    for (const auto& [format, tally] : inventory.formats) {
        print_tally("all", format, tally);
    }
    std::printf("\nfiles\n");
    for (const Inventory::File& file : inventory.files) {
        std::printf("  %-40s %8zu %14.2f\n", visible_text(file.name).c_str(), file.tensors,
                    static_cast<double>(file.bytes) / (1024.0 * 1024.0));
    }
    if (!inventory.unclassified.empty()) std::printf("\nunclassified\n");
    for (const std::string& name : inventory.unclassified) {
        std::printf("  %s\n", visible_text(name).c_str());
    }
    std::string_view config;
    for (const checkpoint::Disagreement& disagreement : inventory.disagreements) {
        if (disagreement.config != config) {
            config = disagreement.config;
            std::printf("\n%s is wrong about\n", disagreement.config.c_str());
        }
        std::printf("  %zu %s\n", disagreement.weights.size(),
                    visible_text(disagreement.what).c_str());
        for (const std::string& name : checkpoint::folded_names(disagreement.weights))
            std::printf("    %s\n", visible_text(name).c_str());
    }
    if (inventory.runnable()) {
        std::printf("\nIt will run.\n");
        return;
    }
    std::printf("\nIt will not run:\n");
    for (const Error& problem : inventory.problems) {
        std::printf("  %s\n", visible_text(problem.message()).c_str());
    }
}

int run(const Arguments& arguments) {
    const auto folder = tools::resolve_model(arguments.model);
    if (!folder.ok()) {
        say_fault("inspect", folder.error().message());
        return 1;
    }
    const auto account = tools::inspect_model(*folder, arguments.values);
    if (!account.ok()) {
        say_fault("inspect", account.error().message());
        return 1;
    }
    const Inventory& inventory = *account;
    if (arguments.json) {
        print_json(inventory);
    } else {
        print_table(folder->string(), inventory);
    }
    for (const std::string& warning : inventory.warnings) {
        std::fprintf(stderr, "warning: %s\n", visible_text(warning).c_str());
    }
    return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = app.add_subcommand(
        "inspect", "Formats and sizes of a checkpoint, what is missing, and whether it will run");
    command->footer(
        "Reads headers only, unless --values is given.  Exits with 0 when the account could be "
        "given, whether or not the\n"
        "checkpoint runs.\n\nExample: percheron inspect models/nano --json");
    command->add_option("MODEL", arguments->model,
                        "Model folder or synth:KEY=VALUE,... (default: the embedded model)");
    command->add_flag("--values", arguments->values,
                      "Also look for NaN among all numbers and FP8 codes");
    command->add_flag("--json", arguments->json, "The account as JSON");
    command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace percheron::apps
