use super::*;
use flate2::{Compression, write::GzEncoder};
use image::{GrayImage, RgbImage};
use std::io::Write;

fn idx(sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let magic = 0x800 + sizes.len() as u32;
    let head = std::iter::once(&magic).chain(sizes).flat_map(|v| v.to_be_bytes());
    head.chain(bytes.iter().copied()).collect()
}

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

#[test]
fn idx_files_are_read_plain_and_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..10 * 6).collect();
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    gz.write_all(&idx(&[10, 2, 3], &pixels)).unwrap();
    write(dir.path(), "t10k-images-idx3-ubyte.gz", &gz.finish().unwrap());
    let labels: Vec<u8> = (0..10).map(|i| i % 3).collect();
    write(dir.path(), "t10k-labels-idx1-ubyte", &idx(&[10], &labels));
    // A single set is divided in its order.
    let all = Dataset::read(dir.path(), 0.2).unwrap();
    assert_eq!((all.train.len(), all.test.len(), all.train.size), (8, 2, [1, 2, 3]));
    assert_eq!((all.test.image(1), all.test.labels.as_slice()), (&pixels[54..], &[2, 0][..]));
    assert_eq!(all.classes, ["0", "1", "2"]);
    // A second set is the test set.
    write(dir.path(), "train-images-idx3-ubyte", &idx(&[1, 2, 3], &pixels[..6]));
    write(dir.path(), "train-labels-idx1-ubyte", &idx(&[1], &[1]));
    let all = Dataset::read(dir.path(), 0.2).unwrap();
    assert_eq!((all.train.len(), all.test.len()), (1, 10));
}

#[test]
fn files_that_are_damaged_are_named() {
    let whole = idx(&[2, 2, 3], &[7; 12]);
    let cases: [(&[u8], &[u8], &str); 5] = [
        (&whole[..9], &idx(&[2], &[0, 1]), "its header is cut off"),
        (&whole[..20], &idx(&[2], &[0, 1]), "but 4 bytes follow"),
        (&whole, &idx(&[3], &[0, 1, 2]), "2 images"),
        (&idx(&[2], &[0, 1]), &idx(&[2], &[0, 1]), "expected 0x00000803"),
        (&idx(&[u32::MAX, u32::MAX, u32::MAX], &[]), &idx(&[2], &[0, 1]), "0 bytes follow"),
    ];
    for (images, labels, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "train-images-idx3-ubyte", images);
        write(dir.path(), "train-labels-idx1-ubyte", labels);
        let message = Dataset::read(dir.path(), 0.5).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("train-"), "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(Dataset::read(dir.path(), 0.5).unwrap_err().to_string().contains("does not have images"));
    write(dir.path(), "data_batch_1.bin", &[0; 3072]);
    assert!(Dataset::read(dir.path(), 0.5).unwrap_err().to_string().contains("a multiple of 3073"));
}

#[test]
fn cifar_binaries_have_one_label_or_two() {
    let dir = tempfile::tempdir().unwrap();
    let record = |labels: &[u8], pixel: u8| [labels, &[pixel; 3072]].concat();
    write(dir.path(), "data_batch_1.bin", &[record(&[1], 5), record(&[0], 6)].concat());
    write(dir.path(), "data_batch_2.bin", &record(&[2], 7));
    write(dir.path(), "test_batch.bin", &record(&[1], 8));
    write(dir.path(), "batches.meta.txt", b"airplane\nautomobile\nbird\n\n");
    let all = Dataset::read(dir.path(), 0.1).unwrap();
    assert_eq!((all.train.labels.as_slice(), all.test.labels.as_slice()), (&[1, 0, 2][..], &[1][..]));
    assert_eq!((all.train.image(2)[3071], all.classes[2].as_str()), (7, "bird"));
    let other = tempfile::tempdir().unwrap();
    write(other.path(), "train.bin", &[record(&[9, 1], 5), record(&[8, 0], 6)].concat());
    assert_eq!(Dataset::read(other.path(), 0.5).unwrap().train.labels, [1]);
}

#[test]
fn pictures_are_classes_by_their_folders() {
    let dir = tempfile::tempdir().unwrap();
    for (class, shade) in [("cat", 40u8), ("dog", 200)] {
        std::fs::create_dir(dir.path().join(class)).unwrap();
        for i in 0..4 {
            let picture = RgbImage::from_fn(6, 5, |x, _| image::Rgb([shade, x as u8, i]));
            picture.save(dir.path().join(class).join(format!("{i}.png"))).unwrap();
        }
    }
    let all = Dataset::read(dir.path(), 0.25).unwrap();
    assert_eq!((all.train.len(), all.test.len(), all.train.size), (6, 2, [3, 5, 6]));
    assert_eq!(
        (all.classes.as_slice(), all.test.labels.as_slice()),
        (&["cat".into(), "dog".into()][..], &[0, 1][..])
    );
    // (C, H, W): the second channel counts columns.
    assert_eq!(&all.train.image(0)[30..36], [0, 1, 2, 3, 4, 5]);
    let gray = dir.path().join("gray.png");
    GrayImage::from_pixel(3, 3, image::Luma([9])).save(&gray).unwrap();
    assert_eq!(picture(&gray, [1, 2, 2]).unwrap(), [9; 4]);
    std::fs::write(&gray, b"no picture").unwrap();
    assert!(picture(&gray, [1, 2, 2]).unwrap_err().to_string().contains("gray.png"));
}

/// The header is checked before the data after it is read.
#[test]
fn a_compressed_file_of_any_length_is_read_as_far_as_its_head_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(&idx(&[1, 2, 3], &[7; 6])).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..200).for_each(|_| gz.write_all(&zeros).unwrap());
    write(dir.path(), "train-images-idx3-ubyte.gz", &gz.finish().unwrap());
    write(dir.path(), "train-labels-idx1-ubyte", &idx(&[1], &[1]));
    let error = Dataset::read(dir.path(), 0.1).unwrap_err();
    assert!(error.message().contains("7 bytes follow"), "{error}");
    // More than a file of this length can contain.
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(&idx(&[1 << 20, 1 << 6, 1 << 6], &[])).unwrap();
    write(dir.path(), "train-images-idx3-ubyte.gz", &gz.finish().unwrap());
    let error = Dataset::read(dir.path(), 0.1).unwrap_err();
    assert!(error.message().contains("sizes are [1048576, 64, 64]"), "{error}");
}

#[test]
fn a_picture_that_says_it_is_vast_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vast.png");
    GrayImage::from_pixel(3, 3, image::Luma([9])).save(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // Change the sizes in IHDR and its checksum.
    for at in [16, 20] {
        bytes[at..at + 4].copy_from_slice(&20_000u32.to_be_bytes());
    }
    let sum = bytes[12..29].iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    bytes[29..33].copy_from_slice(&(!sum).to_be_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = super::folder::picture(&path, [1, 8, 8]).unwrap_err();
    assert!(
        error.message().contains("vast.png") && error.message().to_lowercase().contains("limit"),
        "{error}"
    );
}
