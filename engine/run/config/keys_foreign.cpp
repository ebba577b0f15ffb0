// Keys of other trainers that have no effect here: accepted ones, and those refused because we lack the feature. Each
// has its reason.
#include "engine/base/core/text.h"
#include "engine/run/config/key_table.h"

namespace thinwire {
namespace {

// Adds each of the white-space separated `names` to the topic; `neutral` as in KeySpec.
void add_all(KeyTopic& topic, KeyStatus status, const std::string& reason, const std::string& names,
             const std::vector<std::string>& neutral = {}) {
  for (const std::string& name : split_words(names))
    topic.keys.push_back({.name = name, .types = kAnyKey, .doc = reason, .status = status, .neutral = neutral});
}

}  // namespace

KeyTopic noted_keys() {
  KeyTopic t;
  t.title = "Accepted without effect";
  t.intro =
      "Keys of NeoX, DeepSpeed and Megatron that have no meaning here. They load, and the log says that they have no "
      "effect.";
  const auto note = [&](const std::string& reason, const std::string& names) {
    add_all(t, KeyStatus::kNoted, reason, names);
  };
  note("the engine chooses its kernels itself; values do not depend on fusion", R"(
        scaled_upper_triang_masked_softmax_fusion scaled_masked_softmax_fusion bias_dropout_fusion rope_fusion
        layernorm_fusion rmsnorm_fusion no_bias_dropout_fusion no_masked_softmax_fusion no_rope_fusion
        no_persist_layer_norm use_flashattn_swiglu gradient_accumulation_fusion no_gradient_accumulation_fusion
        no_gradient_reduce_div_fusion use_te_activation_func disable_jit_fuser attention_backend use_flash_attn
        fused_kernels_build_path)");
  note("layers are computed by this engine's kernels, not by Transformer Engine's; fp8 is fp8_format",
       R"(
        te_columnparallel te_rowparallel te_layernorm_mlp te_mha te_fp8_format te_fp8_wgrad
        te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin te_fp8_mha)");
  note("Adam keeps its state in fp32, which bitsandbytes' 8-bit state approximates", "use_bnb_optimizer");
  note("every block is global causal attention, computed by the fastest kernel there is", "attention_config");
  note("ranks come from mpirun, srun or jsrun; nothing is launched by the configuration", R"(
        launcher hostfile include exclude num_nodes num_gpus master_port master_addr force_multi no_ssh_check
        deepspeed_mpi deepspeed_slurm deepspeed deepspeed_extra_args comment user_script local_rank rank
        lazy_mpu_init detect_nvlink_pairs account deepscale deepscale_config use_shared_fs git_hash)");
  note("the transport follows from the build and the device", "distributed_backend");
  note("metrics are in <run_dir>/metrics.jsonl and <run_dir>/tensorboard", R"(
        tensorboard_dir log_dir tensorboard csv_monitor use_wandb wandb wandb_group wandb_team wandb_project
        wandb_host wandb_init_all_ranks wandb_run_name use_comet comet_workspace comet_project
        comet_experiment_name comet_tags comet_others tensorboard_log_interval log_throughput log_params_norm
        log_num_zeros_in_grad timing_log_level timing_log_option log_grad_norm log_grad_pct_zeros log_param_norm
        log_optimizer_states log_gradient_noise_scale gradient_noise_scale_n_batches
        gradient_noise_scale_cpu_offload dump_state eval_tasks eval_results_prefix save_iters do_train
        do_valid do_test config_files is_pipe_parallel comet_experiment valid_data_names test_data_names
        eval_loss_logging char_level_ppl memory_breakdown)");
  note("the console follows log_interval", "steps_per_print");
  note("memory is planned before the first step, and nothing is collected",
       "manual_gc manual_gc_interval no_manual_gc_eval empty_unused_memory_level");
  note("head and loss are computed in pieces", "cross_entropy_loss_fusion cross_entropy_fusion_impl");
  note("data comes from data_path", "mock_data tiktoken_pattern");
  note("times per part of the step are always measured",
       "wall_clock_breakdown comms_logger flops_profiler memory_profiling memory_profiling_path");
  note("use --dry-run, which prices a configuration in milliseconds", "autotuning autotuning_run");
  note("metrics.jsonl times the parts of every step; bench step SHAPE --profile times single ops",
       "profile profile_step_start profile_step_stop profile_step_end profile_ranks");
  note("data is always memory-mapped .bin/.idx and indices are rebuilt in memory", R"(
        data_impl mmap_warmup num_workers no_mmap_bin_files no_create_attention_mask_in_dataloader
        data_cache_path short_seq_prob)");
  note("the padded size follows from vocab_size and make_vocab_size_divisible_by", "padded_vocab_size");
  note("recomputation is per block, never partitioned, and changes no value", R"(
        checkpoint_num_layers recompute_num_layers activations_checkpoint_num_layers
        activation_checkpoint_granularity recompute_method recompute_modules partition_activations
        synchronize_each_layer contiguous_checkpointing checkpoint_in_cpu profile_backward
        deepspeed_activation_checkpointing activation_checkpointing)");
  note("bf16 needs no loss scale", R"(
        bf16.loss_scale bf16.loss_scale_window bf16.initial_scale_power bf16.hysteresis bf16.min_loss_scale
        bf16.auto_cast)");
  note("read by other trainers for layers, norms, positions or training that are refused here", R"(
        moe_top_k moe_router_topk moe_router_load_balancing_type moe_token_dispatcher_type
        moe_use_legacy_grouped_gemm moe_type moe_router_type moe_token_dropping moe_loss_coeff
        moe_aux_loss_coeff moe_train_capacity_factor moe_eval_capacity_factor moe_min_capacity moe_use_residual
        moe_lbl_in_fp32 moe_jitter_eps moe_layer_freq moe_ffn_hidden_size moe_grouped_gemm expert_interval
        moe_expert_interval moe_glu gmlp_attn_dim mamba_selective_scan_fusion mamba_causal_conv_fusion
        mamba_inner_func_fusion mamba_selective_fp32_params mamba_use_bias_in_conv mamba_use_bias_in_linears
        rpe_num_buckets rpe_max_distance scalenorm_epsilon param_sharing_style weighted_sampler_alpha kto_beta
        dpo_beta dpo_fp32 dpo_reference_free kto_fp32 kto_desirable_weight kto_undesirable_weight fp32_reinforce
        kl_impl kl_div_beta reinforce_leave_one_out precompute_model_name online_dataserver_ips
        online_dataserver_ports weight_server_port coord_check_nsteps coord_check_nseeds mup_init_scale
        mup_attn_temp mup_output_temp mup_embedding_mult mup_rp_embedding_mult mup_width_scale mup_lr mup_std
        mup_hidden_size mup_d_model_base mup_save mtp_loss_scaling_factor activation_func_clamp_value
        use_fused_weighted_squared_relu optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d no_pin_cpu_grads
        no_pin_cpu_params fsdp_double_buffer keep_fp8_transpose_cache torch_fsdp2_no_reshard_after_forward
        no_strict_fsdp_dtensor_load retriever_seq_length bert_no_binary_head)");
  note("ranks stand in the order tensor, context, data, pipeline", "topology_order");
  note("softmax and losses are always computed in fp32", "attention_softmax_in_fp32 fp16_lm_cross_entropy");
  note("gradients are always accumulated and reduced in fp32", R"(
        fp32_allreduce accumulate_allreduce_grads_in_fp32 ddp_reduce_scatter_with_fp32_accumulation
        disable_bf16_reduced_precision_matmul prescale_gradients gradient_predivide_factor fp16.fp16
        fp16.auto_cast bf16.bf16 dynamic_loss_scale)");
  note("buckets and gathers are planned by the engine", R"(
        zero_optimization.allgather_partitions zero_optimization.reduce_scatter
        zero_optimization.contiguous_gradients zero_optimization.round_robin_gradients
        zero_optimization.load_from_fp32_weights zero_optimization.sub_group_size
        zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_param_persistence_threshold
        zero_optimization.stage3_max_live_parameters zero_optimization.stage3_max_reuse_distance
        zero_optimization.stage3_gather_16bit_weights_on_model_save zero_optimization.elastic_checkpoint
        zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.ignore_unused_parameters
        zero_contiguous_gradients zero_reduce_scatter overlap_param_gather zero_allow_untested_optimizer)");
  note("the head is always cut by vocabulary rows", "output_layer_parallelism");
  note("initial weights never depend on the layout", "use_cpu_initialization no_load_rng no_save_rng load_universal");
  note("the schedule always continues from the configuration and the step of the checkpoint",
       "override_lr_scheduler override_opt_param_scheduler");
  note("grouped-query attention follows from num_kv_heads", "group_query_attention");
  note("checkpoints have one format and hold what they need", R"(
        ckpt_format dist_ckpt_format checkpoint use_mcore_models transformer_impl s3_path s3_chunk_size)");
  note("the model's keys are given, and must be those of the checkpoint", "use_checkpoint_args");
  note("sampling is the program generate's", R"(
        text_gen_type temperature top_p top_k return_logits maximum_tokens prompt_end sample_input_file
        sample_output_file num_samples recompute)");
  note("Megatron's logging; ours is log.txt, metrics.jsonl and tensorboard/", R"(
        log_timers_to_tensorboard log_batch_size_to_tensorboard log_learning_rate_to_tensorboard
        no_log_learnig_rate_to_tensorboard log_loss_scale_to_tensorboard no_log_loss_scale_to_tensorboard
        log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_world_size_to_tensorboard log_progress
        log_energy log_straggler log_max_attention_logit log_device_memory_used log_hidden_states logging_level
        tensorboard_queue_size barrier_with_L1_time no_barrier_with_level_1_timing config_logger_dir
        enable_one_logger no_one_logger one_logger_project one_logger_run_name one_logger_async app_tag_run_name
        app_tag_run_version wandb_exp_name
        wandb_save_dir wandb_entity disable_straggler_on_startup straggler_ctrlr_port straggler_minmax_count
        run_workload_inspector_server record_memory_history memory_snapshot_path use_pytorch_profiler torch_profile)");
  note("how Megatron overlaps and groups its messages; ours follow from the plan", R"(
        tp_comm_overlap tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_overlap_cfg
        tp_comm_split_ag tp_comm_split_rs tp_comm_bulk_dgrad tp_comm_bulk_wgrad tp_comm_bootstrap_backend
        disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_split_ag disable_tp_comm_split_rs
        disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad pipeline_model_parallel_comm_backend
        overlap_p2p_communication no_overlap_p2p_communication overlap_p2p_communication_warmup_flush
        overlap_param_gather_with_optimizer_step
        no_async_tensor_model_parallel_allreduce delay_wgrad_compute defer_embedding_wgrad_compute
        wgrad_deferral_limit align_grad_reduce align_param_gather no_align_grad_reduce no_align_param_gather
        delay_grad_reduce no_delay_grad_reduce delay_param_gather ddp_num_buckets ddp_average_in_collective
        ddp_pad_buckets_for_high_nccl_busbw DDP_impl no_contiguous_buffers_in_local_ddp
        use_contiguous_buffers_in_local_ddp suggested_communication_unit_size
        num_distributed_optimizer_instances clone_scatter_output_in_embedding
        no_clone_scatter_output_in_embedding microbatch_group_size_per_virtual_pipeline_stage
        high_priority_stream_groups nccl_communicator_config_path nccl_ub nccl_comm_warmup use_nccl_ub
        disable_symmetric_registration reuse_grad_buf_for_mxfp8_param_ag use_sharp sharp_enabled_group
        use_ring_exchange_p2p enable_gloo_process_groups disable_gloo_process_groups standalone_embedding_stage)");
  note("checkpoints have one format, written and read by all ranks", R"(
        ckpt_fully_parallel_save no_ckpt_fully_parallel_save ckpt_fully_parallel_load
        no_ckpt_fully_parallel_load ckpt_assume_constant_structure use_dist_ckpt dist_ckpt_strictness
        use_persistent_ckpt_worker non_persistent_ckpt_type non_persistent_save_interval
        non_persistent_global_ckpt_dir non_persistent_local_ckpt_dir non_persistent_local_ckpt_algo replication
        replication_jump replication_factor dist_ckpt_save_pre_mcore_014 async_strategy
        auto_detect_ckpt_format verify_integrity
        use_mp_args_from_checkpoint_args use_tokenizer_model_from_checkpoint_args
        no_use_tokenizer_model_from_checkpoint_args dist_ckpt_optim_fully_reshardable
        distrib_optim_fully_reshardable_mem_efficient load_main_params_from_ckpt)");
  note("a run saves and leaves on SIGTERM, SIGUSR1 and Ctrl-C by itself, and finds its checkpoint", R"(
        exit_signal_handler exit_signal adlr_autoresume adlr_autoresume_interval inprocess_restart rerun_mode
        enable_ft_package calc_ft_timeouts exit_on_missing_checkpoint error_injection_rate error_injection_type
        result_rejected_tracker_filename)");
  note("non-finite losses and gradients are always looked for; such a step is skipped",
       "check_for_nan_in_loss_and_grad no_check_for_nan_in_loss_and_grad check_for_large_grads");
  note("jumps of the loss are looked for: spike", "check_for_spiky_loss");
  note("say watchdog_seconds", "distributed_timeout_seconds_after_init");
  note("data are memory-mapped .bin/.idx, indices are rebuilt in memory by every rank", R"(
        mmap_bin_files create_attention_mask_in_dataloader num_dataset_builder_threads no_shared_fs
        tokenizer_metadata legacy_tokenizer trust_remote_code s3_cache_path object_storage_cache_path
        dataloader_fast_cache_load mask_prob mask_factor titles_data_path evidence_data_path vocab_extra_ids)");
  note("the engine's own way, which changes no value", R"(
        apply_rope_fusion no_bias_swiglu_fusion no_query_key_layer_scaling distribute_saved_activations
        te_rng_tracker inference_rng_tracker use_tp_pp_dp_mapping enable_cuda_graph external_cuda_graph
        cuda_graph_scope cuda_graph_impl cuda_graph_warmup_steps train_sync_interval no_initialization
        init_model_with_meta_device onnx_safe
        enable_experimental enable_msc disable_msc use_legacy_models fused_linear_cross_entropy batch_invariant_mode
        data_parallel_random_init flash_decode inference_batch_times_seqlen_threshold max_tokens_to_oom
        bert_binary_head manual_gc_eval no_add_qkv_bias query_in_block_prob use_one_sent_docs
        pin_cpu_grads use_torch_optimizer_for_cpu_offload tiktoken_num_special_tokens
        tiktoken_special_tokens rotary_save_freqs)");
  return t;
}

KeyTopic refused_keys() {
  KeyTopic t;
  t.title = "Refused by name";
  t.intro =
      "Features that other trainers have and this one does not. Null, false and the neutral values named here are "
      "accepted.";
  const auto refuse = [&](const std::string& reason, const std::string& names,
                          const std::vector<std::string>& neutral = {}) {
    add_all(t, KeyStatus::kRefused, reason, names, neutral);
  };
  refuse("mixture of experts is not supported", R"(
        moe_num_experts num_experts moe_expert_parallel_size moe_deepspeed_expert_parallel_size
        expert_model_parallel_size enable_expert_tensor_parallelism)",
         {"0", "1"});
  refuse("this scaling of rotary positions is not supported (use_rope_scaling is Llama-3's)", R"(
        rope_scaling rotary_scaling_factor rotary_seq_len_interpolation_factor rotary_interleaved
        rotary_save_freqs_buffer)",
         {"1", "1.0"});
  refuse("say context_parallel_size",
         "hierarchical_context_parallel_sizes ulysses_parallel_size ds_sequence_parallel_size zigzag_tokens", {"1"});
  refuse("norms of queries and keys are not supported", "use_qk_layernorm qk_layernorm qk_l2_norm qk_clip");
  refuse("the two norms of a block are always separate (gpt_j_residual has two)", "gpt_j_tied");
  refuse("say sliding_window_width, which does not count the token itself", "sliding_window window_size");
  refuse("RWKV layers are not supported", "rwkv_fla dim_att head_size ffn_dim");
  refuse("sparse attention is not supported", "sparsity_config sparse_attention");
  refuse("attention is always scaled by 1 / sqrt(head_dim)", "apply_query_key_layer_scaling");
  refuse(
      "gradients are summed in fp32; for a narrower wire say grad_reduce_in_bf16, or \"compression\": "
      "\"bf16_wire\" for every site",
      "communication_data_type", {"\"fp32\""});
  refuse("gradients travel in fp32 unless a rule or grad_reduce_in_bf16 says otherwise", "grad_reduce_in_fp32",
         {"true"});
  refuse("overflows that hysteresis counts are forgotten when the scale grows, not by every step without one",
         "fp16.consecutive_hysteresis");
  refuse(
      "say \"compression\": \"zeropp\", or a rule for weights alone: {\"zero.parameter\": {\"codec\": "
      "\"block_int\", \"bits\": 8}}",
      "zero_optimization.zero_quantized_weights");
  refuse(
      "say \"compression\": \"zeropp\", or a rule for gradients alone: {\"dp.gradient\": {\"codec\": "
      "\"block_int\", \"bits\": 4}}",
      "zero_optimization.zero_quantized_gradients");
  refuse("all weights are trained, and stored as they are computed with",
         "zero_optimization.zero_quantized_nontrainable_weights");
  refuse("say \"compression\": \"loco\", or residual ema with beta and reset_every in the rule of dp.gradient",
         "zero_optimization.zeropp_loco_param");
  refuse("say placement {weights, gradients, optimizer}: node instead",
         "zero_optimization.mics_shard_size zero_optimization.mics_hierarchical_params_gather", {"-1", "0"});
  refuse("offloading to CPU memory or disk is not supported", R"(
        zero_optimization.cpu_offload zero_optimization.cpu_offload_params
        zero_optimization.cpu_offload_use_pin_memory zero_optimization.offload_optimizer
        zero_optimization.offload_param cpu_offload optimizer_cpu_offload)");
  refuse("say activation_offload and sequence_chunk_size",
         "cpu_offloading_num_layers fine_grained_activation_offloading offload_modules", {"0"});
  refuse("products in fp8 are fp8_format: hybrid; fp4 is not supported",
         "fp8 fp8_recipe fp8_hybrid fp4 te_fp8 fp8_margin no_fp8_wgrad");
  refuse("say lr_decay_iters", "lr_decay_fraction");
  refuse("the length of a run is given in steps: say train_iters", "train_epochs");
  refuse("the schedule always continues from the configuration and the step of the checkpoint",
         "use_checkpoint_lr_scheduler use_checkpoint_opt_param_scheduler");
  refuse("the batch grows by rampup_batch_size",
         "step_batch_size_schedule batch_scheduling curriculum_learning curriculum_seqlen data_efficiency "
         "decrease_batch_size_if_needed",
         {"0"});
  refuse("documents are packed into sequences across their ends", "pack_impl allow_chopped dataset_impl",
         {"\"packed\"", "true", "\"gpt2\""});
  refuse("say reset_attention_mask, which keeps attention inside of a document", "eod_attention_mask");
  refuse("say the weights of data sets: train_data_weights", "weight_by_num_documents");
  refuse("data sets take turns by the weights that are given", "renormalize_blend_weights");
  refuse("labels are the tokens that follow; eod_mask_loss leaves some out",
         "label_data_paths train_label_data_paths valid_label_data_paths test_label_data_paths");
  refuse("stages are cut by pipe_partition_method, not by given counts", R"(
        decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers num_unique_layers
        pipeline_model_parallel_layout account_for_embedding_in_pipeline_split
        account_for_loss_in_pipeline_split)");
  refuse("checkpoints are saved by save_interval, save_interval_minutes and extra_save_iters",
         "checkpoint_scale save_retain_interval", {"\"linear\""});
  refuse("a checkpoint is checked by the checksums in it, not by a forward pass",
         "checkpoint_validation_with_forward_pass");
  refuse("checkpoints always hold the optimizer", "no_save_optim");
  refuse("muP is not supported", "use_mup coord_check save_base_shapes base_shapes_file");
  refuse("soft prompts and adapters are not supported", "soft_prompt_tuning lora peft adapter_config");
  refuse("preference and reinforcement training are not supported", R"(
        train_impl z_loss serve_model_weights train_reward_data_paths valid_reward_data_paths test_reward_data_paths
        pos_train_data_paths pos_valid_data_paths pos_test_data_paths neg_train_data_paths neg_valid_data_paths
        neg_test_data_paths pos_train_label_data_paths pos_valid_label_data_paths pos_test_label_data_paths
        neg_train_label_data_paths neg_valid_label_data_paths neg_test_label_data_paths perform_rl_step)",
         {"\"normal\"", "0", "0.0"});
  refuse("positions begin at the first one", "opt_pos_emb_offset", {"0"});
  refuse("say train_micro_batch_size_per_gpu", "batch_size");
  refuse("automatic mixed precision is not supported: say precision", "amp");
  refuse("say optimizer.type adam and \"compression\": \"one_bit_adam\"",
         "onebit_adam optimizer.params.freeze_step optimizer.params.cuda_aware optimizer.params.comm_backend_name");
  refuse(
      "weights are not pruned or quantised in training; what travels is coded by compression rules "
      "(docs/presets.md)",
      "compression_training");
  refuse("embedding gradients are dense; a rule for dp.gradient or embedding with codec top_k sends few of them",
         "sparse_gradients");
  refuse("control messages (norms, losses, flags) are never coded", "compression.control");
  refuse("fill-in-the-middle is not supported: tokenize data that are rearranged already",
         "extra_sentinel_tokens fim_rate fim_split_sample fim_fragment_rate no_fragment", {"0", "0.0"});
  refuse("every linear layer of a block has a bias, or none (disable_bias_linear)", "add_bias_linear", {"true"});
  refuse("LayerNorm's gain is stored as it is used", "apply_layernorm_1p");
  refuse("the residual branches off before the norm", "apply_residual_connection_post_layernorm");
  refuse("residuals are kept in the dtype of the activations", "fp32_residual_connection");
  refuse("weights are drawn from normal distributions: init_method", "init_method_xavier_uniform");
  refuse("one standard deviation is for all: init_method_std", "embedding_init_method_std");
  refuse("one learning rate and one weight decay are for all layers and steps", R"(
        head_lr_mult decoupled_lr decoupled_min_lr start_weight_decay end_weight_decay weight_decay_incr_style
        no_weight_decay_cond_type apply_wd_to_qk_layernorm)",
         {"1", "1.0", "\"constant\""});
  refuse("the optimizer's state and master weights are fp32", R"(
        exp_avg_dtype exp_avg_sq_dtype main_params_dtype use_precision_aware_optimizer)",
         {"\"fp32\""});
  refuse("samples are drawn in Megatron's order from the first", "dataloader_type", {"\"single\""});
  refuse("a run begins with its first sample; finetune starts anew from a checkpoint's weights",
         "consumed_train_samples skipped_train_samples phase_transition_iterations", {"0"});
  refuse("name the checkpoint itself, in a run_dir of its own: load=DIR/step_000400", "ckpt_step iteration", {"0"});
  refuse("FSDP is zero_optimization.stage here", R"(
        use_torch_fsdp2 use_custom_fsdp use_megatron_fsdp data_parallel_sharding_strategy
        enable_full_sharding_in_hsdp)");
  refuse("multi-latent attention is not supported", "multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim");
  refuse("prediction of several tokens is not supported", "mtp_num_layers", {"0"});
  refuse("encoders are not supported: the model is a decoder", R"(
        num_encoder_layers encoder_num_layers decoder_num_layers encoder_seq_length decoder_seq_length
        pipeline_model_parallel_split_rank transformer_pipeline_model_parallel_size num_channels patch_dim
        output_bert_embeddings)");
  refuse("Mamba and hybrid layers are not supported",
         "is_hybrid_model hybrid_attention_ratio hybrid_override_pattern disable_mamba_mem_eff_path", {"0", "0.0"});
  refuse("every layer has the same attention and positions", R"(
        no_rope_freq window_attn_skip_freq attention_output_gate softmax_type glu_linear_offset
        heterogeneous_layers_config_path)",
         {"0", "0.0", "\"vanilla\""});
  refuse("this is Llama's rotary scaling: use_rope_scaling", "rope_type", {"\"rope\""});
  refuse("all layers compute in one precision, scaled as fp8_format says", R"(
        first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 fp8_param_gather
        fp8_interval fp8_amax_history_len fp8_amax_compute_algo fp4_format fp4_param)");
  refuse("retrieval, fine-tuning on conversations and other tasks are not supported",
         "retro_add_retriever sft spec retro_workdir");
  refuse("a run trains: evaluation alone is not supported",
         "skip_train full_validation multiple_validation_sets test_mode");
  refuse("data paths are data_path, or train_data_paths, valid_data_paths, test_data_paths",
         "per_split_data_args_path data_args_path");
  refuse("flags come from --args-file", "yaml_cfg");
  refuse("moving averages of weights are not supported", "ema_decay");
  refuse("schedules are given by lr_decay_style", "scheduler");
  refuse("elastic training is not supported", "elasticity");
  refuse("this activation is not supported: activation is gelu or swiglu", "squared_relu quick_geglu");
  refuse("say load and finetune", "pretrained_checkpoint");
  refuse("checkpoints are converted by the program checkpoint: import, export",
         "ckpt_convert_format ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format");
  refuse("every document is drawn", "sample_rate", {"1", "1.0"});
  refuse("biases on QKV alone are not supported", "add_qkv_bias");
  refuse("say num_kv_heads", "attention_type", {"\"groupedquery\""});
  return t;
}

}  // namespace thinwire
