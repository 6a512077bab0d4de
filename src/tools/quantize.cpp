#include "tools/quantize.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "core/files.h"
#include "tools/checkpoint_folder.h"
#include "tools/quantize_description.h"
#include "tools/quantize_experts.h"
#include "tools/quantize_folder.h"
#include "tools/quantize_layers.h"
#include "tools/quantize_plan.h"
#include "tools/quantize_rounder.h"
#include "tools/stored_model.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::SafetensorsWriter;
using checkpoint::stem_of;
using checkpoint::TensorHeader;
using Json = nlohmann::ordered_json;

// FNV-1a over bytes.
class Fingerprint {
  public:
    void add(std::span<const std::byte> bytes) {
        for (const std::byte byte : bytes)
            value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
    }
    std::string text() const { return std::to_string(value_); }

  private:
    std::uint64_t value_ = 0xcbf29ce484222325u;
};

// Everything the bytes of OUT follow from.
Result<std::string> describe_run(const Checkpoint& model, const QuantizeOptions& options) {
    Json run;
    run["lay-out of unfinished runs"] = 2;
    run["format"] = ops::name_of(options.format);
    run["rest"] = options.rest ? Json(ops::name_of(*options.rest)) : Json();
    run["include"] = options.include;
    run["keep"] = options.keep;
    run["shard size"] = options.shard_limit;
    Json files = Json::array();
    for (const checkpoint::SafetensorsFile& file : model.shards().files()) {
        std::error_code ignored;
        const auto changed = fs::last_write_time(file.path(), ignored).time_since_epoch().count();
        files.push_back({file.path().filename().string(), file.mapping().bytes().size(), changed});
    }
    run["files of MODEL"] = std::move(files);
    PERCHERON_ASSIGN(const std::string config,
                     read_text_file(model.shards().folder() / "config.json", Bytes{1} << 26));
    Fingerprint numbers;
    numbers.add(std::as_bytes(std::span(config)));
    run["config.json of MODEL"] = numbers.text();
    if (options.calibration) {
        const Calibration& calibration = *options.calibration;
        Fingerprint ids;
        for (const CalibrationText& text : calibration.texts) {
            const std::size_t length = text.ids.size();
            ids.add(std::as_bytes(std::span(&length, 1)));
            ids.add(std::as_bytes(std::span(text.ids)));
            for (const PromptImage& image : text.images) {
                ids.add(std::as_bytes(std::span(&image.first, 1)));
                ids.add(std::as_bytes(std::span(image.content_hash)));
            }
        }
        run["calibration texts"] = ids.text();
        run["all experts"] = calibration.all_experts;
        run["least rows"] = calibration.least_rows;
        run["damping"] = calibration.damping;
    }
    return run.dump(1) + "\n";
}

// What one section adds to the report.
struct SectionAccount {
    struct Format {
        std::size_t tensors = 0;
        Bytes bytes = 0;
        RoundingError error;
    };
    std::map<std::string, Format> formats;
    std::optional<LayerAccount> layer;

    std::string to_text() const {
        Json json;
        for (const auto& [name, format] : formats) {
            json["formats"][name] = {format.tensors, format.bytes, format.error.squared_error,
                                     format.error.squared_sum};
        }
        if (layer) {
            json["layer"] = {{"matrices", layer->matrices},
                             {"errors", {layer->error, layer->nearest_error, layer->outputs}},
                             {"rows", layer->expert_rows},
                             {"uncovered", layer->uncovered}};
        }
        return json.dump() + "\n";
    }

    static SectionAccount of_text(const std::string& text) {
        const Json json = Json::parse(text);
        SectionAccount account;
        const Json formats = json.value("formats", Json::object());
        for (const auto& [name, list] : formats.items()) {
            account.formats[name] = {list[0], list[1], {list[2], list[3]}};
        }
        if (const auto found = json.find("layer"); found != json.end()) {
            LayerAccount& layer = account.layer.emplace();
            layer.matrices = (*found)["matrices"];
            layer.error = (*found)["errors"][0];
            layer.nearest_error = (*found)["errors"][1];
            layer.outputs = (*found)["errors"][2];
            layer.expert_rows = (*found)["rows"].get<std::vector<std::uint64_t>>();
            layer.uncovered = (*found)["uncovered"].get<std::vector<std::string>>();
        }
        return account;
    }
};

class Quantizer {
  public:
    Quantizer(Checkpoint& model, const QuantizeOptions& options,
              const std::vector<PlannedWeight>& plan, QuantizeFolder& folder, CalibrationMath& math)
        : model_(model),
          options_(options),
          folder_(folder),
          math_(math),
          rounder_(math.pool()),
          replaced_(model),
          files_{folder.state()} {
        for (std::size_t first = 0; first < plan.size();) {
            std::size_t last = first;
            while (last < plan.size() && plan[last].section == plan[first].section)
                ++last;
            sections_.push_back(std::span(plan).subspan(first, last - first));
            first = last;
        }
        for (const PlannedWeight& weight : plan)
            total_ += source_bytes(weight);
        if (options.calibration) {
            network_.emplace(model.config(), replaced_, options.calibration->texts, files_,
                             options.threads);
        }
    }

    Result<QuantizeReport> run() {
        std::vector<std::vector<TensorHeader>> shards;
        std::vector<std::size_t> first_shards;
        for (const std::span<const PlannedWeight> section : sections_) {
            first_shards.push_back(shards.size());
            const auto own = shards_of(section);
            shards.insert(shards.end(), own.begin(), own.end());
        }
        first_shards.push_back(shards.size());
        const std::vector<std::optional<std::string>> records = finished(shards.size());
        for (std::size_t i = 0; i < sections_.size(); ++i) {
            if (records[i]) {
                for (const PlannedWeight& weight : sections_[i])
                    count(weight);
                add(i, SectionAccount::of_text(*records[i]));
            } else {
                const auto own = std::span(shards).subspan(first_shards[i],
                                                           first_shards[i + 1] - first_shards[i]);
                PERCHERON_ASSIGN(SectionAccount account, write_section(i, first_shards[i], own));
                PERCHERON_TRY(write_record(i, account, first_shards[i], own.size()));
                add(i, account);
            }
            // The streams in front of a finished layer are of no more use.
            if (i > 0) remove(files_.streams(i - 1));
        }
        PERCHERON_TRY(folder_.publish(shards, options_.shard_limit));
        for (const auto& [name, error] : errors_) {
            if (error.squared_sum > 0) {
                report_.formats[name].relative_error =
                    std::sqrt(error.squared_error / error.squared_sum);
            }
        }
        report_.source_bytes = total_;
        report_.files = report_.bytes <= options_.shard_limit ? 1 : shards.size();
        if (network_) {
            report_.calibration_texts = options_.calibration->texts.size();
            report_.calibration_marks = marks_of(options_.calibration->texts);
            report_.calibration_tokens = network_->tokens();
        }
        return std::move(report_);
    }

  private:
    static void remove(const fs::path& path) {
        std::error_code ignored;
        fs::remove(path, ignored);
    }

    // Records of the sections that need not be done.  One whose layer's streams are gone though
    // the layer is to be done is done again, and so, back to the first, is what that needs.
    std::vector<std::optional<std::string>> finished(std::size_t all_shards) const {
        std::vector<std::optional<std::string>> records;
        for (std::size_t i = 0; i < sections_.size(); ++i)
            records.push_back(folder_.record(i, all_shards));
        if (!network_) return records;
        const model::ModelConfig& config = model_.config();
        for (std::size_t i = config.layers() + config.mtp_layers; i > 0; --i) {
            if (i >= sections_.size() || records[i] || !records[i - 1]) continue;
            if (!folder_.holds(i - 1, files_.streams(i - 1))) records[i - 1].reset();
        }
        return records;
    }

    Status write_record(std::size_t index, const SectionAccount& account, std::size_t first_shard,
                        std::size_t shards) {
        std::vector<fs::path> files;
        for (std::size_t i = 0; i < shards; ++i)
            files.push_back(folder_.part(first_shard + i));
        std::error_code error;
        if (network_ && fs::exists(files_.streams(index), error))
            files.push_back(files_.streams(index));
        return folder_.write_record(index, account.to_text(), files);
    }

    static Bytes source_bytes(const PlannedWeight& weight) {
        Bytes bytes = 0;
        for (const checkpoint::TensorPlace& place : weight.source.all())
            bytes += place.tensor->bytes.size();
        return bytes;
    }

    void count(const PlannedWeight& weight) {
        done_ += source_bytes(weight);
        if (options_.progress) options_.progress(done_, total_);
    }

    std::vector<std::vector<TensorHeader>> shards_of(std::span<const PlannedWeight> section) const {
        std::vector<std::vector<TensorHeader>> units;
        for (const PlannedWeight& weight : section)
            units.push_back(weight.outputs);
        return checkpoint::join_into_shards(units, options_.shard_limit);
    }

    Result<SectionAccount> write_section(std::size_t index, std::size_t first_shard,
                                         std::span<const std::vector<TensorHeader>> shards) {
        const std::span<const PlannedWeight> section = sections_[index];
        SectionAccount account;
        PackedWeights packed;
        if (network_) PERCHERON_TRY(calibrate(index, packed, account));
        std::size_t next = 0;
        for (std::size_t i = 0; i < shards.size(); ++i) {
            PERCHERON_ASSIGN(SafetensorsWriter writer,
                             SafetensorsWriter::create(folder_.part(first_shard + i), shards[i]));
            for (std::size_t tensors = 0; tensors < shards[i].size(); ++next) {
                PERCHERON_TRY(write(section[next], section, packed, writer, account));
                tensors += section[next].outputs.size();
            }
            PERCHERON_TRY(writer.finish());
        }
        replaced_.clear();
        return account;
    }

    // Rounds what the section's layer computes with and computes it over the texts: `packed` gets
    // every rounded matrix, the folder the streams in front of the next layer.
    Status calibrate(std::size_t index, PackedWeights& packed, SectionAccount& account) {
        const std::span<const PlannedWeight> section = sections_[index];
        for (const PlannedWeight& weight : section) {
            if (weight.copied() || weight.calibrated) continue;
            PERCHERON_ASSIGN(PackedWeight rounded, nearest(weight, section));
            const auto place =
                packed.insert_or_assign(stem_of(weight.tensor.name), std::move(rounded)).first;
            replaced_.replace(place->first, place->second.view(weight));
        }
        if (index == 0) return network_->embed();
        const model::ModelConfig& config = model_.config();
        const std::size_t layer = index - 1;
        if (layer >= config.layers() + config.mtp_layers) return {};
        const bool last = layer == config.layers();  // the MTP layer, which nothing follows
        LayerCalibration calibration(options_, config, section, replaced_, math_, packed);
        if (calibration.watches()) {
            const ProductWatcher watcher = calibration.watcher();
            PERCHERON_TRY(network_->attend(layer, watcher));
            PERCHERON_TRY(network_->feed_forward(watcher, false));
            PERCHERON_TRY(calibration.round_watched());
        }
        PERCHERON_TRY(network_->attend(layer, {}));
        if (const ops::ExpertsWeights* experts = network_->experts()) {
            PERCHERON_TRY(
                calibration.round_experts(*experts, network_->inputs(), network_->input_rows(),
                                          [this](const PlannedWeight& weight) { count(weight); }));
        }
        if (!last) PERCHERON_TRY(network_->feed_forward({}, true));
        network_->leave();
        account.layer = calibration.take_account();
        return {};
    }

    Result<PackedWeight> nearest(const PlannedWeight& weight,
                                 std::span<const PlannedWeight> section) {
        PERCHERON_ASSIGN(
            const ops::WeightMatrix source,
            model_.matrix(stem_of(weight.tensor.name), weight.rows(), weight.columns()));
        PERCHERON_ASSIGN(const float global_scale,
                         planned_global_scale(weight, section, model_, math_.pool()));
        return rounder_.nearest(weight, source, global_scale);
    }

    Status write(const PlannedWeight& weight, std::span<const PlannedWeight> section,
                 PackedWeights& packed, SafetensorsWriter& writer, SectionAccount& account) {
        SectionAccount::Format& tally = account.formats[std::string(ops::name_of(weight.format))];
        if (weight.copied()) {
            const std::vector<checkpoint::TensorPlace> places = weight.source.all();
            for (std::size_t i = 0; i < places.size(); ++i)
                PERCHERON_TRY(writer.write(weight.outputs[i].name, places[i].tensor->bytes));
        } else {
            auto found = packed.find(stem_of(weight.tensor.name));
            if (found == packed.end()) {
                PERCHERON_ASSIGN(PackedWeight rounded, nearest(weight, section));
                PERCHERON_TRY(write_parts(weight, rounded, writer));
                tally.error += rounded.error;
            } else {
                PERCHERON_TRY(write_parts(weight, found->second, writer));
                tally.error += found->second.error;
                packed.erase(found);
            }
        }
        ++tally.tensors;
        for (const TensorHeader& output : weight.outputs)
            tally.bytes += output.bytes();
        const bool counted =
            weight.calibrated && weight.tensor.role == checkpoint::TensorRole::routed_expert;
        if (!counted) count(weight);
        return {};
    }

    static Status write_parts(const PlannedWeight& weight, const PackedWeight& packed,
                              SafetensorsWriter& writer) {
        for (std::size_t i = 0; i < packed.parts.size(); ++i)
            PERCHERON_TRY(writer.write(weight.outputs[i].name, packed.parts[i]));
        return {};
    }

    void add(std::size_t index, const SectionAccount& account) {
        for (const auto& [name, format] : account.formats) {
            QuantizeReport::Format& tally = report_.formats[name];
            tally.tensors += format.tensors;
            tally.bytes += format.bytes;
            report_.bytes += format.bytes;
            errors_[name] += format.error;
        }
        if (!account.layer) return;
        const LayerAccount& layer = *account.layer;
        report_.uncovered.insert(report_.uncovered.end(), layer.uncovered.begin(),
                                 layer.uncovered.end());
        if (layer.matrices == 0 && layer.expert_rows.empty()) return;
        QuantizeReport::Layer& entry = report_.layers.emplace_back();
        entry.index = index - 1;
        entry.matrices = layer.matrices;
        entry.expert_rows = layer.expert_rows;
        if (layer.outputs > 0) {
            entry.error = std::sqrt(layer.error / layer.outputs);
            entry.nearest_error = std::sqrt(layer.nearest_error / layer.outputs);
        }
    }

    Checkpoint& model_;
    const QuantizeOptions& options_;
    QuantizeFolder& folder_;
    CalibrationMath& math_;
    MatrixRounder rounder_;
    ReplacedWeights replaced_;
    LayerFiles files_;
    std::vector<std::span<const PlannedWeight>> sections_;
    std::optional<LayeredNetwork> network_;
    QuantizeReport report_;
    std::map<std::string, RoundingError> errors_;
    Bytes done_ = 0;
    Bytes total_ = 0;
};

// At most: the parts, and once more where they are joined into one file; of a calibration the
// streams before and behind a layer and the rows of its feed-forward.
Bytes bytes_to_write(const model::ModelConfig& config, const std::vector<PlannedWeight>& plan,
                     const QuantizeOptions& options) {
    Bytes bytes = 0;
    for (const PlannedWeight& weight : plan) {
        for (const TensorHeader& tensor : weight.outputs)
            bytes += tensor.bytes();
    }
    if (bytes <= options.shard_limit) bytes *= 2;
    if (!options.calibration) return bytes;
    Bytes tokens = 0;
    for (const CalibrationText& text : options.calibration->texts)
        tokens += text.ids.size();
    return bytes + tokens * config.hidden * (2 * config.streams + 1) * sizeof(float);
}

}  // namespace

Result<QuantizeReport> quantize(const fs::path& model, const fs::path& out,
                                const QuantizeOptions& options) {
    PERCHERON_ASSIGN(const StoredModel stored, StoredModel::of(model, out));
    PERCHERON_ASSIGN(const std::unique_ptr<Checkpoint> source, Checkpoint::open(stored.folder()));
    PERCHERON_ASSIGN(const std::vector<PlannedWeight> plan, plan_quantization(*source, options));
    PERCHERON_ASSIGN(const std::string config, quantized_config(stored.folder(), plan));
    PERCHERON_ASSIGN(const std::unique_ptr<CalibrationMath> math,
                     CalibrationMath::create(options.threads));
    PERCHERON_ASSIGN(const std::string run, describe_run(*source, options));
    PERCHERON_ASSIGN(
        QuantizeFolder folder,
        QuantizeFolder::open(out, run, bytes_to_write(source->config(), plan, options)));
    PERCHERON_ASSIGN(QuantizeReport report, Quantizer(*source, options, plan, folder, *math).run());
    PERCHERON_TRY(copy_companions(stored.folder(), out, Companions::all));
    const std::string modelopt = modelopt_config(plan);
    if (!modelopt.empty()) {
        PERCHERON_TRY(write_text_file(out / "hf_quant_config.json", modelopt));
    }
    // Last, so that a folder with a config is a whole checkpoint.
    PERCHERON_TRY(write_text_file(out / "config.json", config));
    if (options.finish) PERCHERON_TRY(options.finish(report));
    PERCHERON_TRY(folder.remove_state());
    return report;
}

}  // namespace percheron::tools
