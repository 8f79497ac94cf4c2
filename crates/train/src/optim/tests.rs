use super::*;
use netcl_model::params::{Init, Params};
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, ErrorKind};

const ADAMW: AdamW = AdamW { betas: [0.9, 0.95], eps: 1e-8 };
const SGD: Sgd = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false };

/// Returns a matrix, a bias of an odd size, and a parameter that did not fit into their arena.
fn params(dtype: DType) -> Params {
    let normal = Init::Normal(1.0);
    let two =
        |p: &mut Params| Ok([p.make("c_fc.weight", [5, 7], normal)?, p.make("c_fc.bias", [7], normal)?]);
    let (mut params, _) = Params::build(&test_device().unwrap(), dtype, Some(7), two).unwrap();
    params.make("wpe.weight", [3, 333], normal).unwrap();
    assert_eq!(params.arenas().count(), 2);
    params
}

/// Trains with half the square of every weight as loss, so gradients are the weights.
fn train(params: &Params, optimizer: &mut Optimizer, steps: usize) {
    for _ in 0..steps {
        optimizer.zero_grad();
        for p in params.list() {
            optimizer.backward(&p.mul(p).unwrap().sum(&[], false).unwrap().mul_scalar(0.5).unwrap()).unwrap();
        }
        optimizer.step(0.01).unwrap();
    }
}

fn bytes(params: &Params) -> Vec<Vec<u8>> {
    params.list().iter().map(|p| p.to_bytes().unwrap()).collect()
}

fn make(params: &Params, scale: bool) -> Optimizer {
    let groups = ParamGroup::gpt(params.list(), 0.1);
    let scaling = LossScale { initial: 64.0, growth_interval: 3 };
    let mut optimizer = match scale {
        true => Optimizer::with_loss_scale(Arc::new(ADAMW), groups, scaling).unwrap(),
        false => Optimizer::new(Arc::new(ADAMW), groups).unwrap(),
    };
    optimizer.clip_grad_norm(1.0);
    optimizer
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    for (dtype, scale) in [(DType::F32, false), (DType::F16, true)] {
        let all = params(dtype);
        let mut optimizer = make(&all, scale);
        train(&all, &mut optimizer, 5);
        let (expected, expected_state) = (bytes(&all), optimizer.state_dict().unwrap());

        let half = params(dtype);
        let mut optimizer = make(&half, scale);
        train(&half, &mut optimizer, 2);
        let (weights, state) = (bytes(&half), optimizer.state_dict().unwrap());
        let rest = params(dtype);
        let mut optimizer = make(&rest, scale);
        train(&rest, &mut optimizer, 1);
        rest.list().iter().zip(&weights).for_each(|(p, w)| p.set_bytes(w).unwrap());
        optimizer.load_state_dict(&state).unwrap();
        train(&rest, &mut optimizer, 3);
        assert!(bytes(&rest) == expected, "{dtype}");
        assert!(optimizer.state_dict().unwrap() == expected_state, "{dtype}");
        let report = optimizer.report().unwrap().read().unwrap();
        assert_eq!((report.step, report.scale), (5, if scale { 128.0 } else { 1.0 }));
    }
}

#[test]
fn state_has_the_names_of_checkpoints() {
    let all = params(DType::Bf16);
    let names = |o: &Optimizer| {
        o.state_dict().unwrap().into_iter().map(|t| (t.name, t.dtype, t.shape)).collect::<Vec<_>>()
    };
    let sgd = Optimizer::new(Arc::new(SGD), vec![ParamGroup::new(&all.list()[..1], 0.0)]).unwrap();
    let expected = [
        ("step".to_owned(), FileDtype::I64, vec![]),
        ("c_fc.weight.momentum_buffer".to_owned(), FileDtype::F32, vec![5, 7]),
        ("c_fc.weight.master".to_owned(), FileDtype::F32, vec![5, 7]),
    ];
    assert_eq!(names(&sgd), expected);
    let adamw = names(&make(&all, true));
    assert_eq!(adamw.len(), 3 + 3 * 3);
    assert!(adamw.contains(&("wpe.weight.exp_avg_sq".to_owned(), FileDtype::F32, vec![3, 333])));
}

#[test]
fn matrices_decay_and_vectors_do_not() {
    let all = params(DType::F32);
    let before: Vec<Vec<f32>> = all.list().iter().map(|p| p.to_vec().unwrap()).collect();
    let mut optimizer = Optimizer::new(Arc::new(ADAMW), ParamGroup::gpt(all.list(), 0.5)).unwrap();
    for p in all.list() {
        p.set_grad(Some(Tensor::zeros(p.device(), p.shape(), p.dtype()).unwrap()));
    }
    optimizer.step(0.1).unwrap();
    for (p, before) in all.list().iter().zip(before) {
        let factor = if p.dims().len() == 2 { 0.95 } else { 1.0 };
        for (after, before) in p.to_vec().unwrap().iter().zip(before) {
            assert!((after - before * factor).abs() <= 1e-6 * before.abs(), "{:?}", p.name());
        }
    }
}

#[test]
fn weights_that_were_overwritten_are_taken_over() {
    let all = params(DType::Bf16);
    let mut optimizer = make(&all, false);
    train(&all, &mut optimizer, 1);
    all.list().iter().for_each(|p| p.set_f32(&vec![100.0; p.count()]).unwrap());
    optimizer.weights_changed();
    train(&all, &mut optimizer, 1);
    assert!(all.list().iter().all(|p| p.to_vec().unwrap().iter().all(|x| (99.0..101.0).contains(x))));
}

/// Master weights follow parameters that are written between steps, and no other digit changes.
#[test]
fn a_parameter_that_is_written_between_steps_keeps_what_was_written() {
    for dtype in [DType::F16, DType::Bf16] {
        let (all, same) = (params(dtype), params(dtype));
        // Clipping is off, because a changed parameter would change the norm of all gradients.
        let plain = |p: &Params| Optimizer::new(Arc::new(ADAMW), ParamGroup::gpt(p.list(), 0.1)).unwrap();
        let (mut optimizer, mut other) = (plain(&all), plain(&same));
        train(&all, &mut optimizer, 2);
        train(&same, &mut other, 2);
        let written = &all.list()[1];
        written.set_f32(&[8.0; 7]).unwrap();
        // Load the optimizer's own rounded values, so that nothing changes.
        let kept = &all.list()[2];
        kept.set_f32(&kept.to_vec().unwrap()).unwrap();
        train(&all, &mut optimizer, 1);
        train(&same, &mut other, 1);
        assert!(
            written.to_vec().unwrap().iter().all(|v| (7.8..8.1).contains(v)),
            "{dtype}: {:?}",
            written.to_vec()
        );
        for i in [0, 2] {
            let [a, b] = [&all, &same].map(|p| p.list()[i].to_bytes().unwrap());
            assert_eq!(a, b, "{dtype}, parameter {i}");
        }
    }
}

#[test]
fn master_weights_keep_the_digits_of_a_wider_file() {
    let all = params(DType::Bf16);
    let plain = Arc::new(Sgd { momentum: 0.0, dampening: 0.0, nesterov: false });
    let mut optimizer = Optimizer::new(plain, vec![ParamGroup::new(all.list(), 0.0)]).unwrap();
    // Between 1 and the next bf16 number, 1 + 2^-7: steps of 2^-9 leave the parameter at 1; one step leaves the master weight at 1 + 2^-9.
    let wide = 1.0 + 2f32.powi(-9);
    let tensor = |p: &Tensor| TensorData {
        name: p.name().unwrap().into(),
        dtype: FileDtype::F32,
        shape: p.dims().to_vec(),
        bytes: wide.to_le_bytes().repeat(p.count()),
    };
    let mut file: Vec<_> = all.list().iter().map(tensor).collect();
    let step = |optimizer: &mut Optimizer| {
        for p in all.list() {
            p.set_f32(&vec![1.0; p.count()]).unwrap();
            p.set_grad(Some(Tensor::full(p.device(), p.shape(), -1.0, p.dtype()).unwrap()));
        }
        optimizer.step(f64::from(1.1 * 2f32.powi(-9))).unwrap();
        all.list()[0].to_vec().unwrap()[0]
    };
    optimizer.load_master(&file).unwrap();
    assert_eq!(step(&mut optimizer), 1.0 + 2f32.powi(-7));
    optimizer.weights_changed();
    assert_eq!(step(&mut optimizer), 1.0);
    let missing = file.remove(0).name;
    let e = optimizer.load_master(&file).unwrap_err();
    assert!(e.kind() == ErrorKind::Format && e.message().contains(&missing), "{e}");
}

#[test]
fn mistakes_are_named() {
    let all = params(DType::F32);
    let mut optimizer = make(&all, false);
    let e = optimizer.step(0.1).unwrap_err();
    assert!(e.message().contains("c_fc.weight [5, 7] does not have a gradient"), "{e}");
    let state = optimizer.state_dict().unwrap();
    let mut fails = |change: fn(&mut Vec<TensorData>), words: &str| {
        let mut state = state.clone();
        change(&mut state);
        let e = optimizer.load_state_dict(&state).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format);
        assert!(e.message().contains(words), "{e}");
    };
    fails(|s| drop(s.remove(0)), "step is missing");
    fails(|s| drop(s.remove(1)), "c_fc.weight.exp_avg is missing");
    fails(|s| s[1].shape = vec![7, 5], "c_fc.weight.exp_avg F32[7, 5], expected F32[5, 7]");
    fails(|s| s[1].bytes.truncate(8), "c_fc.weight.exp_avg F32[5, 7] with 8 bytes");
    fails(|s| s[0].bytes = (-1i64).to_le_bytes().into(), "step is not a number of steps");
    fails(
        |s| s.push(TensorData { name: "lm_head.exp_avg".into(), ..s[1].clone() }),
        "lm_head.exp_avg belongs to no",
    );
    let unnamed = Tensor::ones(all.device(), [2], DType::F32).unwrap();
    let e = Optimizer::new(Arc::new(SGD), vec![ParamGroup::new(&[unnamed], 0.0)]).err().unwrap();
    assert!(e.message().contains("does not have a name"), "{e}");
    let twice = [all.list()[0].clone(), all.list()[0].clone()];
    let e = Optimizer::new(Arc::new(SGD), vec![ParamGroup::new(&twice, 0.0)]).err().unwrap();
    assert!(e.message().contains("two parameters are named c_fc.weight"), "{e}");
}

/// Two optimizers that each update half of every parameter and exchange sums of squares equal one optimizer. The bits are the same, and both skip
/// the step in which a gradient of one half is infinite.
#[test]
fn halves_that_exchange_their_norm_have_the_bits_of_the_whole() {
    for dtype in [DType::F32, DType::F16] {
        let [whole, left, right] = [(); 3].map(|()| params(dtype));
        let groups = |params: &Params| ParamGroup::gpt(params.list(), 0.1);
        let part = |params: &Params, second: bool| {
            let half = |param: &Tensor| {
                let (middle, end) = (param.count() / 32 * 16, param.count());
                ParameterPart::new(param, if second { middle..end } else { 0..middle }).unwrap()
            };
            let parts = params.list().iter().map(half).filter(|part| !part.range.is_empty()).collect();
            Optimizer::of_parts(Arc::new(ADAMW), groups(params), dtype, parts).unwrap()
        };
        let mut one = Optimizer::for_storage(Arc::new(ADAMW), groups(&whole), dtype).unwrap();
        let mut halves = [part(&left, false), part(&right, true)];
        one.clip_grad_norm(0.0);
        halves.iter_mut().for_each(|half| half.clip_grad_norm(0.0));
        for step in 0..3 {
            let grad = |param: &Tensor| {
                let mut values: Vec<f32> = (0..param.count()).map(|i| (i % 7) as f32 - 2.5).collect();
                if step == 1 && dtype == DType::F16 && param.name() == Some("wpe.weight") {
                    values[3] = f32::INFINITY;
                }
                Tensor::from_f32(param.device(), param.shape(), &values, dtype).unwrap()
            };
            whole.list().iter().for_each(|param| param.set_grad(Some(grad(param))));
            one.step(0.01).unwrap();
            let mut squares = 0.0;
            for half in &mut halves {
                for ParameterPart { param, range, view } in half.parts().unwrap() {
                    let flat = grad(param).reshape([param.count()]).unwrap();
                    view.set_grad(Some(flat.slice(0, range.clone()).unwrap()));
                }
                half.set_rate(0.01).unwrap();
                half.measure().unwrap();
                squares += half.squares().unwrap();
            }
            let expected = one.report().unwrap().read().unwrap();
            assert_eq!(expected.skipped, step == 1 && dtype == DType::F16);
            for half in &mut halves {
                half.set_squares(squares).unwrap();
                half.apply_measured().unwrap();
                half.count();
                let found = half.report().unwrap().read().unwrap();
                assert_eq!(
                    (found.skipped, found.step, found.scale),
                    (expected.skipped, expected.step, expected.scale)
                );
            }
        }
        for ((whole, left), right) in whole.list().iter().zip(left.list()).zip(right.list()) {
            let middle = whole.count() / 32 * 16 * dtype.size();
            let joined = [&left.to_bytes().unwrap()[..middle], &right.to_bytes().unwrap()[middle..]].concat();
            assert_eq!(joined, whole.to_bytes().unwrap(), "{:?} {dtype}", whole.name());
        }
        let bytes: usize = halves.iter().map(Optimizer::state_bytes).sum();
        assert!(bytes <= one.state_bytes() + 1024 && halves.iter().all(|half| half.planned_state().is_err()));
    }
}
