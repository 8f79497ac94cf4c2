// The folders of tests/goldens/decoder. Each is a test in decoder.rs and two tests in families.rs, which both include this file.
macro_rules! with_families {
    ($then:ident) => {
        $then! {
            gpt2 llama llama3 llama_linear mistral mixtral mixtral_balanced qwen2 qwen3 qwen3_moe qwen3_moe_step gemma2 gemma3 phi3 olmo2
            smollm3 granite gpt_neox gpt_neox_serial starcoder2 starcoder2_plain
        }
    };
}
