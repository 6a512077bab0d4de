#include "tools/synth.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/synthetic_model.h"
#include "checkpoint/torch_vector.h"
#include "core/files.h"
#include "tools/checkpoint_folder.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsWriter;
using checkpoint::SyntheticModel;
using checkpoint::SyntheticTensor;
using checkpoint::SyntheticWeight;
using checkpoint::TensorHeader;
using WriteUnit = std::vector<TensorHeader>;  // tensors that stay together

Bytes bytes_of(const WriteUnit& unit) {
    Bytes bytes = 0;
    for (const TensorHeader& header : unit) {
        bytes += header.bytes();
    }
    return bytes;
}

Bytes bytes_of_all(const std::vector<WriteUnit>& units) {
    Bytes total = 0;
    for (const WriteUnit& unit : units) {
        total += bytes_of(unit);
    }
    return total;
}

// Exactly `count` shards, none empty, in the order given, each beginning near its share of the
// bytes.
std::vector<WriteUnit> split_evenly(const std::vector<WriteUnit>& units, std::size_t count) {
    const Bytes total = bytes_of_all(units);
    std::vector<WriteUnit> shards(count);
    Bytes before = 0;
    std::size_t shard = 0;
    for (std::size_t i = 0; i < units.size(); ++i) {
        const auto share = static_cast<std::size_t>(
            static_cast<double>(before) / static_cast<double>(total) * static_cast<double>(count));
        const std::size_t left = units.size() - i;
        if (i > 0) shard = std::min({std::max(share, shard), shard + 1, count - 1});
        if (left < count) shard = std::max(shard, count - left);
        shards[shard].insert(shards[shard].end(), units[i].begin(), units[i].end());
        before += bytes_of(units[i]);
    }
    return shards;
}

// What stays together, in the order it is stored.  `seconds` is where split pairs begin their other
// halves.
struct Units {
    std::vector<WriteUnit> firsts;
    std::vector<WriteUnit> seconds;
};

Units units_of(const SyntheticModel& model, bool split_pairs) {
    Units units;
    for (const SyntheticWeight& weight : model.weights) {
        WriteUnit unit;
        for (const SyntheticTensor& part : weight.parts) {
            if (split_pairs && !unit.empty()) {
                units.seconds.push_back({part.header});
            } else {
                unit.push_back(part.header);
            }
        }
        units.firsts.push_back(std::move(unit));
    }
    return units;
}

Result<std::vector<WriteUnit>> shards_of(const SyntheticModel& model, const SynthOptions& options) {
    const Units units = units_of(model, options.split_pairs);
    const std::size_t most = units.firsts.size() + units.seconds.size();
    if (options.shards > most) {
        return Error(ErrorCode::invalid_argument, "--shards " + std::to_string(options.shards) +
                                                      ": there are only " + std::to_string(most) +
                                                      " tensors to spread");
    }
    if (options.shards == 0) {
        auto shards = checkpoint::join_into_shards(units.firsts, options.shard_limit);
        for (WriteUnit& shard : checkpoint::join_into_shards(units.seconds, options.shard_limit)) {
            shards.push_back(std::move(shard));
        }
        return shards;
    }
    if (units.seconds.empty()) return split_evenly(units.firsts, options.shards);
    if (options.shards < 2) {
        return Error(ErrorCode::invalid_argument, "--split-pairs needs at least two shards");
    }
    const std::size_t firsts = std::min(options.shards - 1, units.firsts.size());
    auto shards = split_evenly(units.firsts, firsts);
    for (WriteUnit& shard : split_evenly(units.seconds, options.shards - firsts)) {
        shards.push_back(std::move(shard));
    }
    return shards;
}

class Writer {
  public:
    Writer(const std::vector<SyntheticWeight>& weights, std::uint64_t seed, const fs::path& out,
           const SynthOptions& options)
        : seed_(seed), out_(out), options_(options), pool_({.threads = options.threads}) {
        for (const SyntheticWeight& weight : weights) {
            for (const SyntheticTensor& part : weight.parts) {
                tensors_.emplace(part.header.name, &part);
                total_ += part.header.bytes();
            }
        }
    }

    Result<SynthReport> run(const std::vector<WriteUnit>& shards) {
        SynthReport report;
        for (std::size_t i = 0; i < shards.size(); ++i) {
            PERCHERON_ASSIGN(SafetensorsWriter writer,
                             SafetensorsWriter::create(
                                 out_ / checkpoint::shard_name(i, shards.size()), shards[i]));
            for (const TensorHeader& header : shards[i]) {
                PERCHERON_TRY(write(header, writer));
            }
            PERCHERON_TRY(writer.finish());
        }
        if (shards.size() > 1) PERCHERON_TRY(checkpoint::write_index(out_, shards));
        report.tensors = tensors_.size();
        report.bytes = total_;
        report.files = shards.size();
        return report;
    }

  private:
    Status write(const TensorHeader& header, SafetensorsWriter& writer) {
        buffer_.resize(header.bytes());
        checkpoint::make_tensor(*tensors_.at(header.name), seed_, pool_, buffer_);
        PERCHERON_TRY(writer.write(header.name, buffer_));
        done_ += header.bytes();
        if (options_.progress) options_.progress(done_, total_);
        return {};
    }

    std::uint64_t seed_;
    const fs::path& out_;
    const SynthOptions& options_;
    ThreadPool pool_;
    std::map<std::string, const SyntheticTensor*> tensors_;
    std::vector<std::byte> buffer_;
    Bytes done_ = 0;
    Bytes total_ = 0;
};

}  // namespace

Result<SynthReport> synth(const fs::path& out, const SynthOptions& options) {
    PERCHERON_ASSIGN(const SyntheticModel model, checkpoint::make_synthetic_model(options.spec));
    PERCHERON_ASSIGN(const std::vector<WriteUnit> shards, shards_of(model, options));
    PERCHERON_TRY(make_output_folder(out, bytes_of_all(shards)));
    PERCHERON_ASSIGN(SynthReport report,
                     Writer(model.weights, model.spec.seed, out, options).run(shards));
    report.tokenizer = !options.tokenizer_from.empty() &&
                       options.spec.vocabulary >= checkpoint::embedded_vocabulary;
    if (report.tokenizer) {
        PERCHERON_TRY(copy_companions(options.tokenizer_from, out, Companions::tokenizer_only));
    }
    // Last, so that a folder with a config is a whole checkpoint.
    PERCHERON_TRY(write_text_file(out / "config.json", checkpoint::written_config(model)));
    return report;
}

Result<SynthReport> synth_drafter(const fs::path& out, const checkpoint::SyntheticDrafter& drafter,
                                  const SynthOptions& options) {
    WriteUnit all;
    for (const SyntheticWeight& weight : drafter.weights) {
        all.push_back(weight.parts.front().header);
    }
    PERCHERON_TRY(make_output_folder(out, bytes_of(all)));
    PERCHERON_ASSIGN(const SynthReport report,
                     Writer(drafter.weights, drafter.seed, out, options).run({all}));
    if (!drafter.config.mask.empty()) {
        PERCHERON_TRY(
            write_text_file(out / "mask_embedding.pt",
                            checkpoint::torch_vector_file(drafter.config.mask, "mask_embedding")));
    }
    PERCHERON_TRY(write_text_file(out / "config.json", checkpoint::written_config(drafter)));
    return report;
}

}  // namespace percheron::tools
