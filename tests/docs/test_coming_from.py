"""The page for people who come from other loaders: complete, and only with names that exist here."""

from __future__ import annotations

import re
from types import ModuleType

import datasets
import pytest
import webdataset

import penstock as ps
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "how-to" / "coming-from.md").read_text()


# Not installed here, so listed by hand, from the wheels of tensorflow-cpu 2.21.0 (methods of tf.data.Dataset, names of
# tf.data, its experimental module and service), torchvision 0.29.2 (transforms.v2) and lhotse 1.33.0 (methods of
# CutSet, names of dataset, dataset.sampling, cut_transforms and signal_transforms).
BY_HAND = {
    "tf.data": """
        apply as_numpy_iterator batch bucket_by_sequence_length cache cardinality choose_from_datasets concatenate
        counter element_spec enumerate filter fingerprint flat_map from_generator from_tensor_slices from_tensors
        get_single_element group_by_window ignore_errors interleave list_files load map options padded_batch prefetch
        ragged_batch random range rebatch reduce rejection_resample repeat sample_from_datasets save scan shard shuffle
        skip snapshot sparse_batch take take_while unbatch unique window with_options zip
        CsvDataset FixedLengthRecordDataset SqlDataset TFRecordDataset TextLineDataset TFRecordWriter Options
        AutoShardPolicy AutotuneOptions DistributeOptions OptimizationOptions ThreadingOptions Reducer Counter
        assert_cardinality at copy_to_device dense_to_ragged_batch dense_to_sparse_batch distributed_save from_list
        get_structure group_by_reducer index_table_from_dataset make_csv_dataset make_saveable_from_iterator
        map_and_batch pad_to_cardinality prefetch_to_device service table_from_dataset
        Dataset DatasetSpec INFINITE_CARDINALITY UNKNOWN_CARDINALITY Iterator IteratorSpec NumpyIterator
        AutotuneAlgorithm DatasetInitializer ExternalStatePolicy Optional RandomDataset SHARD_HINT ServiceOptions
        enable_debug_mode enumerate_dataset from_variant get_model_proto get_next_as_optional
        make_batched_features_dataset parallel_interleave parse_example_dataset shuffle_and_repeat to_variant
        CrossTrainerCache DispatchServer DispatcherConfig ShardingPolicy WorkerConfig WorkerServer distribute
        from_dataset_id register_dataset""",
    "torchvision v2 and Albumentations": """
        Resize ScaleJitter RandomShortestSize RandomResize RandomCrop RandomResizedCrop RandomIoUCrop CenterCrop
        FiveCrop TenCrop RandomHorizontalFlip RandomVerticalFlip Pad RandomZoomOut RandomRotation RandomAffine
        RandomPerspective ElasticTransform ColorJitter RandomChannelPermutation RandomPhotometricDistort Grayscale
        RGB RandomGrayscale GaussianBlur GaussianNoise RandomInvert RandomPosterize RandomSolarize RandomAdjustSharpness
        RandomAutocontrast RandomEqualize Compose RandomApply RandomChoice RandomOrder LinearTransformation Normalize
        RandomErasing Lambda
        SanitizeBoundingBoxes SanitizeKeyPoints SetClampingMode InterpolationMode ClampBoundingBoxes ClampKeyPoints
        UniformTemporalSubsample JPEG AutoAugment RandAugment
        TrivialAugmentWide AugMix CutMix MixUp ToImage ToPureTensor PILToTensor ToPILImage ToDtype ToTensor Identity
        ConvertBoundingBoxFormat ConvertImageDtype""",
    "lhotse": """
        combine_same_recording_channels compute_and_store_features compute_and_store_features_batch infinite_mux
        compute_global_feature_stats copy_data copy_feats cut_into_windows cut_into_windows_balanced data decompose
        dereverb_wpe describe drop_alignments drop_features drop_in_memory_data drop_recordings drop_supervisions
        extend_by fill_supervisions filter filter_supervisions from_cuts from_dicts from_files from_huggingface_dataset
        from_manifests from_shar from_webdataset has_constant_time_access ids index_supervisions is_indexed load_audio
        load_state_dict map map_supervisions merge_supervisions mix mixed_cuts modify_ids multi_cuts mux narrowband
        normalize_loudness pad perturb_speed perturb_tempo perturb_volume prefetch repeat resample reverb_rir sample
        save_audios shuffle simple_cuts sort_by_duration sort_by_recording_id sort_like speakers split split_lazy
        state_dict subset to_dicts to_eager to_huggingface_dataset to_shar transform_text trim_to_alignments
        trim_to_supervision_groups trim_to_supervisions trim_to_unsupervised_segments truncate
        with_features_path_prefix with_recording_path_prefix
        BucketingSampler CutPairsSampler DynamicCutSampler DynamicBucketingSampler RoundRobinSampler SamplingConstraint
        SamplingDiagnostics SimpleCutSampler StatelessSampler TimeConstraint TokenConstraint WeightedSimpleCutSampler
        ZipSampler find_pessimistic_batches report_padding_ratio_estimate CutConcatenate CutMix ExtraPadding
        LowpassUsingResampling PerturbSpeed PerturbTempo PerturbVolume ReverbWithImpulseResponse Compress
        ClippingTransform concat_cuts GlobalMVN RandomizedSmoothing SpecAugment
        DereverbWPE time_warp mask_along_axis_optimized random_mask_along_batch_axis schedule_value_for_step
        from_file from_items from_json from_jsonl from_jsonl_lazy from_yaml load_manifest load_manifest_lazy is_lazy
        to_file to_json to_jsonl to_yaml open_writer store_manifest MonoCut MultiCut SupervisionSegment SupervisionSet
        Fbank Mfcc LibrosaFbank TorchaudioFbank TorchaudioMfcc Spectrogram LogSpectrogram TorchaudioSpectrogram
        KaldifeatFbank KaldifeatMfcc OpenSmileExtractor S3PRLSSL AudioSource FeatureSet Features FeatureSetBuilder
        collate_audio collate_features collate_matrices collate_vectors BatchIO read_audio_from_cuts
        supervision_to_frames supervision_to_samples compute_supervisions_frame_mask WhisperFbank OnTheFlyFeatures
        Recording RecordingSet
        AudioTaggingDataset DiarizationDataset DynamicUnsupervisedDataset UnsupervisedDataset
        DynamicallyMixedSourceSeparationDataset IterableDatasetWrapper K2SurtDataset K2SpeechRecognitionDataset
        LazyWebdatasetIterator PreMixedSourceSeparationDataset SourceSeparationDataset SpeechSynthesisDataset
        UnsupervisedWaveformDataset VadDataset WebdatasetWriter export_to_webdataset make_worker_init_fn plot_batch""",
}


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.M)[0]


def rows(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^\| (.*?) \| (.*) \|$", text, re.M)
    return [(theirs, ours) for theirs, ours in found if not theirs.startswith("-") and not ours.startswith("Penstock")]


def names(cell: str) -> set[str]:
    return {name for code in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"\w+", code)}


def public(*kinds: type) -> set[str]:
    return {name for kind in kinds for name in dir(kind) if not name.startswith("_")}


def test_each_method_of_hugging_face_datasets_has_a_line() -> None:
    listed = set().union(*(names(theirs) for theirs, _ in rows(section("Hugging Face datasets"))))
    assert public(datasets.Dataset, datasets.IterableDataset) - listed == set()


def test_each_name_of_webdataset_has_a_line() -> None:
    listed = set().union(*(names(theirs) for theirs, _ in rows(section("WebDataset"))))
    modules = {name for name in dir(webdataset) if isinstance(getattr(webdataset, name), ModuleType)}
    theirs = {name for name in dir(webdataset) if not name.startswith("_")} - modules
    assert (theirs | public(webdataset.WebDataset)) - listed == set()


def test_each_name_of_grain_has_a_line() -> None:
    grain = pytest.importorskip("grain")  # of the extra `bench`
    listed = set().union(*(names(theirs) for theirs, _ in rows(section("Grain"))))
    modules = (grain.experimental, grain.transforms, grain.samplers, grain.sources, grain.sharding, grain.checkpoint)
    theirs = public(grain.MapDataset, grain.IterDataset, grain.DatasetIterator)
    theirs |= {name for module in modules for name in dir(module) if not name.startswith("_")}
    theirs |= {name for name in dir(grain) if name[0].isupper()}
    assert theirs - listed == set()


@pytest.mark.parametrize("library", BY_HAND)
def test_each_documented_operation_has_a_line(library: str) -> None:
    listed = set().union(*(names(theirs) for theirs, _ in rows(section(library))))
    assert set(BY_HAND[library].split()) - listed == set()


def test_every_name_of_ours_exists() -> None:
    missing = []
    for _, ours in rows(PAGE):
        for code in re.findall(r"`([^`]+)`", ours):
            missing += [f"ps.{name}" for name in re.findall(r"\bps\.(\w+)", code) if not hasattr(ps, name)]
            missing += [
                f"loader.{name}" for name in re.findall(r"\bloader\.(\w+)", code) if not hasattr(ps.Loader, name)
            ]
            missing += [f".{name}" for name in re.findall(r"(?:^|\))\.(\w+)\(", code) if not hasattr(ps.Pipeline, name)]
    assert missing == []
